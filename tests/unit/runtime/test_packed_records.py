"""Many records in one file: none is lost, added or renamed unseen, and none fills the memory."""

from __future__ import annotations

import gzip
import json

import pytest

from smidgen.errors import StoreError
from smidgen.runtime.packed_records import is_packed, pack_records, unpack_records
from smidgen.runtime.record import Record

RECORDS = {name: Record("demo", {"n": i}, {"nll": i / 3}) for i, name in enumerate("cab")}


def lines_of(path):
    return gzip.decompress(path.read_bytes()).splitlines(keepends=True)


def test_records_come_back_and_give_the_same_bytes(tmp_path):
    path = pack_records(tmp_path / "r.jsonl.gz", RECORDS)
    assert is_packed(path)
    assert unpack_records(path) == RECORDS
    before = path.read_bytes()
    pack_records(path, dict(reversed(RECORDS.items())))
    assert path.read_bytes() == before
    assert unpack_records(pack_records(tmp_path / "none.jsonl.gz", {})) == {}


def rename(lines):
    line = json.loads(lines[1])
    return [lines[0], json.dumps({**line, "name": "z"}).encode() + b"\n", *lines[2:]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[:-1], "has 2 records, not those its first line counts"),
        (lambda lines: [*lines, lines[-1]], "has 4 records"),
        (lambda lines: [*lines[:-1], lines[-2]], "has 3 records, not those"),
        (rename, "damaged or edited"),
        (lambda lines: lines[1:], "has no digest, so an earlier version"),
        (lambda lines: [lines[0].replace(b"3", b"true"), *lines[1:]], "."),
        (lambda lines: [*lines, b"{}"], "something was added to its end"),
        (lambda lines: [*lines, b"{}\n"], "does not hold a name and a record"),
        (
            lambda lines: [line.replace(b'"n":1', b'"n":2') for line in lines],
            "record 'a' is",
        ),
        (lambda lines: [], "."),
        (lambda lines: [b"[" * 10_000 + b"\n"], "nested more than 64 deep"),
    ],
)
def test_a_change_of_any_line_is_found(tmp_path, change, message):
    path = pack_records(tmp_path / "r.jsonl.gz", RECORDS)
    path.write_bytes(gzip.compress(b"".join(change(lines_of(path)))))
    with pytest.raises(StoreError, match=message) as refused:
        unpack_records(path)
    assert "r.jsonl.gz" in str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:-4], "was cut off"),
        (lambda content: content + b"\0", "added to its end"),
        (lambda content: content + content, "added to its end"),
        (lambda content: b"", "was cut off"),
        (lambda content: b"{}" + content, "cannot be unpacked"),
        (
            lambda content: content[:-5] + bytes([content[-5] ^ 1]) + content[-4:],
            "unpacked",
        ),
    ],
)
def test_a_change_of_the_packing_is_found(tmp_path, change, message):
    path = pack_records(tmp_path / "r.jsonl.gz", RECORDS)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(StoreError, match=message):
        unpack_records(path)


def test_a_bomb_is_not_unpacked(tmp_path):
    path = tmp_path / "bomb.jsonl.gz"
    path.write_bytes(gzip.compress(bytes(2**28)))
    with pytest.raises(StoreError, match="would unpack to more than|a line has more than"):
        unpack_records(path)
