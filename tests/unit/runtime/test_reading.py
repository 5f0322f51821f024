"""What is read is bounded before it is parsed, and exactly what it claims to be."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from safetensors.torch import save, save_file

from smidgen.errors import StoreError
from smidgen.runtime.artifact import read_tensor_file
from smidgen.runtime.reading import (
    MOST_JSON,
    is_count,
    make_from_json,
    open_regular,
    parse_json,
    parse_object,
    read_safetensors,
    read_whole,
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[" * 65 + b"]" * 65, "nested more than 64 deep"),
        (b'{"a":' * 200_000, "nested more than 64 deep"),
        (b'{"a": [1, NaN]}', "holds the number NaN"),
        (b"[-Infinity]", "holds the number -Infinity"),
        (b"[1e400]", "beyond all floats"),
        (b'{"a": {"b": 1, "b": 1}}', "says 'b' twice"),
        (b"[" + b"9" * 5000 + b"]", "more than 400 digits"),
    ],
)
def test_json_that_says_too_much_is_refused(text, message):
    with pytest.raises(StoreError, match=message):
        parse_json(text)


def test_a_file_that_says_it_is_larger_than_the_memory_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setenv("SMIDGEN_MEMORY", "1e9")
    place = {"dtype": "F32", "shape": [2**29], "data_offsets": [0, 2**31]}
    header = json.dumps({"x": place}).encode()
    path = tmp_path / "hole"
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2**31)
    with pytest.raises(StoreError, match="take 2.15 GB, and 1.00 GB are free"):
        read_safetensors(path)
    # One that is not ours is refused by its header, before that.
    with pytest.raises(StoreError, match="its metadata have no 'key'"):
        read_tensor_file(path, key="key", what="thing", advice="Make it again.")


def test_plain_json_is_as_in_the_standard_library():
    text = r'{"a": [1, 2.5, -3e-7, null, true, "x\"[[\\"], "b": {"c": []}, "é": "\ud83d"}'
    assert parse_json(text.encode()) == {
        "a": [1, 2.5, -3e-7, None, True, 'x"[[\\'],
        "b": {"c": []},
        "é": "\ud83d",
    }
    # Brackets in text are no depth, digits in text no number.
    assert parse_json(b'["' + b"[" * 500 + b"9" * 500 + b'"]')
    assert parse_json(b"[" * 64 + b"]" * 64)
    assert parse_json(b"[Infinity]", finite=False) == [float("inf")]
    for broken in (b"", b"{", b'{"a": 1,}', b"\xff", b"[1] 2"):
        with pytest.raises(ValueError, match="."):
            parse_json(broken)
    with pytest.raises(StoreError, match="must be a JSON object, got list"):
        parse_object(b"[]")


def test_hostile_text_is_scanned_in_linear_time():
    started = time.perf_counter()
    for hostile in (b'"' + rb"\"" * 1_000_000, b'"' * 1_000_001, b"\\" * 1_000_000):
        with pytest.raises(ValueError, match="."):
            parse_json(hostile)
    assert time.perf_counter() - started < 5


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "device").symlink_to("/dev/zero")
    where = os.getcwd()
    os.chdir(tmp_path)  # a socket's path is short
    try:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind("socket")
    finally:
        os.chdir(where)
    for name, allowed in {
        "fifo": StoreError,
        "device": StoreError,
        "socket": OSError,
    }.items():
        with pytest.raises(allowed), open_regular(tmp_path / name):
            pass
    listening.close()
    with pytest.raises(IsADirectoryError), open_regular(tmp_path):
        pass
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(MOST_JSON + 1)
    with pytest.raises(StoreError, match="more than the 33,554,432 allowed"):
        read_whole(big)


KINDS = {
    "a": torch.randn(3, 2, dtype=torch.float64),
    "b": torch.tensor(1.5),
    "c": torch.zeros(0, 4),
    "d": torch.tensor([True, False]),
    "e": torch.tensor([1, -2], dtype=torch.int8),
    "f": torch.tensor([65535, 3], dtype=torch.uint16),
    "g": torch.randn(5).to(torch.bfloat16),
    "h": torch.tensor([2**62]),
}


def test_tensors_come_back_as_they_were(tmp_path):
    save_file(KINDS, tmp_path / "t", metadata={"x": "y"})
    found, metadata = read_safetensors(tmp_path / "t")
    assert metadata == {"x": "y"}
    assert found.keys() == KINDS.keys()
    for name, tensor in KINDS.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name], tensor)


def with_header(text, data=b""):
    return len(text).to_bytes(8, "little") + text + data


ONE = b'{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a safetensors file"),
        (b"1234567", "not a safetensors file"),
        ((2**63).to_bytes(8, "little") + b"{}", "not a safetensors file"),
        (with_header(b"[]"), "must be a JSON object"),
        (with_header(b'{"a":' + ONE + b"}", bytes(7)), "is not where its header says"),
        (
            with_header(b'{"a":' + ONE + b"}", bytes(9)),
            "9 bytes of tensors, its header says 8",
        ),
        (with_header(b'{"a":' + ONE + b',"b":' + ONE + b"}", bytes(8)), "is not where"),
        (
            with_header(b'{"a":' + ONE.replace(b"F32", b"F31") + b"}", bytes(8)),
            "type 'F31'",
        ),
        (
            with_header(b'{"a":' + ONE.replace(b"[2]", b"[-2]") + b"}", bytes(8)),
            "no numbers",
        ),
        (
            with_header(b'{"a":' + ONE.replace(b"[2]", b"[2.0]") + b"}", bytes(8)),
            "no numbers",
        ),
        (
            with_header(b'{"a":' + ONE.replace(b"[2]", b"[true]") + b"}", bytes(8)),
            "no number",
        ),
        (
            with_header(b'{"a":' + ONE.replace(b"[2]", b"[4611686018427387904,8]") + b"}"),
            "impossible size",
        ),
        (with_header(b'{"a":3}'), "does not describe tensor 'a'"),
        (with_header(b'{"__metadata__":{"a":3}}'), "metadata in its header are not text"),
        (
            with_header(
                b'{"a":' + ONE.replace(b"F32", b"BOOL").replace(b"8]", b"2]") + b"}",
                b"\1\2",
            ),
            "neither true nor false",
        ),
    ],
)
def test_a_safetensors_file_is_what_its_header_says(tmp_path, content, message):
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(StoreError, match=message):
        read_safetensors(tmp_path / "t")


def test_a_header_cannot_ask_for_more_than_the_file_holds(tmp_path):
    huge = save({"a": torch.zeros(2)}).replace(b'"shape":[2]', b'"shape":[8000000000]')
    (tmp_path / "t").write_bytes(
        (int.from_bytes(huge[:8], "little") + 9).to_bytes(8, "little") + huge[8:]
    )
    with pytest.raises(StoreError, match="is not where its header says"):
        read_safetensors(tmp_path / "t")


@dataclass(frozen=True)
class Small:
    number: int
    factor: float = 1.0
    name: str | None = None
    kind: Literal["a", "b"] = "a"
    pairs: tuple[tuple[float, float | None], ...] = ()
    by_name: dict[str, float] | None = None


def test_a_dataclass_is_made_of_values_of_its_types_only():
    values = {"number": 3, "factor": 2, "pairs": [[1.0, None]], "by_name": {"x": 1.5}}
    found = make_from_json(Small, values)
    assert found == Small(3, 2, pairs=((1.0, None),), by_name={"x": 1.5})
    for change, message in (
        ({"number": True}, "number must not be 'True'"),
        ({"number": 3.0}, "number must not be '3.0'"),
        ({"number": "3"}, "number must not be '3'"),
        ({"factor": 10**400}, "factor must not be"),
        ({"name": ["x"]}, "name must not be"),
        ({"kind": "c"}, "kind must not be 'c'"),
        ({"kind": ["a"]}, "kind must not be"),
        ({"pairs": [[1.0]]}, r"pairs\[0\] must have 2 values, got 1"),
        ({"by_name": {"x": "y"}}, r"by_name\[x\] must not be 'y'"),
        ({"odd": 1}, "Small has the unknown 'odd'"),
    ):
        with pytest.raises(StoreError, match=message):
            make_from_json(Small, {**values, **change})
    with pytest.raises(StoreError, match="Small lacks 'number'"):
        make_from_json(Small, {})
    with pytest.raises(StoreError, match="must be a JSON object"):
        make_from_json(Small, [1])


def test_counts_are_what_torch_takes_as_a_size():
    assert all(map(is_count, (0, 5, 2**63 - 1)))
    assert not any(map(is_count, (-1, 2**63, True, 1.0, "1", None)))
