"""Ways to damage an artifact, each from a seed.

*Raw* ones change bytes or files, as disks and hands do. *Edits* change what a header or a
tensor says and keep the digest; *forged* ones are the same edits under a new digest, as
somebody would make them who means harm.
"""

from __future__ import annotations

import json
import os
from copy import deepcopy

import torch

from smidgen.errors import StoreError
from smidgen.runtime.artifact import DIGEST, find_digest
from tests.fuzz.artifacts import KINDS

VALUES = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    -0.0,
    0.5,
    -3.5,
    1e308,
    10**30,
    -(10**19),
    2**63,
    "",
    "0",
    "whole",
    "none",
    "a" * 300,
    "\ud800",
    "\x1b[31m",
    [],
    {},
    [[]],
    [1, 2],
    [None],
    {"a": 1},
    {"": None},
)
NUMBERS = (float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 1e30, -1e-9, 3.0)


def damage_bytes(kind, files, random):
    """Change the bytes of one file."""
    name = random.choice(sorted(files))
    content = bytearray(files[name])
    at = random.randrange(len(content))
    # Headers are short and tensors long: most of the meaning is at the start.
    if random.random() < 0.5:
        at = random.randrange(min(len(content), 400))
    span = random.randrange(1, 40)
    way = random.randrange(9)
    if way <= 2:
        content[at] ^= 1 << random.randrange(8)
    elif way == 3:
        content[at] = random.randrange(256)
    elif way == 4:
        del content[at:]
    elif way == 5:
        content[at:at] = random.randbytes(span)
    elif way == 6:
        del content[at : at + span]
    elif way == 7:
        other = random.randrange(len(content))
        here, there = content[at : at + span], content[other : other + span]
        content[at : at + span], content[other : other + span] = there, here
    else:
        content[at : at + span] = random.choice([bytes(span), b"\xff" * span, b"[" * 90])
    return {**files, name: bytes(content)}


def damage_files(kind, files, random):
    """Lose, exchange, empty or replace whole files."""
    name = random.choice([kind.header, kind.tensors or kind.header])
    way = random.randrange(6)
    files = dict(files)
    if way == 0:
        del files[name]
    elif way == 1:
        files[name] = b""
    elif way == 2:
        other = KINDS[random.choice(sorted(KINDS))]
        files[name] = other.files()[
            random.choice([other.header, other.tensors or other.header])
        ]
    elif way == 3:
        files[name] = files[random.choice(sorted(files))]
    elif way == 4:
        deep = random.choice([b"[", b'{"a":', b"[{"]) * random.choice([65, 5000, 200_000])
        files[name] = random.choice([b"", len(deep).to_bytes(8, "little")]) + deep
    else:
        size = random.choice([2**63, 2**62, 2**40, 2**26, 0, 1])
        files[name] = size.to_bytes(8, "little") + files[name][8:]
    return files


def place_odd_file(kind, path, random):
    """Put something that is no file in a file's place; None if nothing was done."""
    target = (
        path if path.is_file() else path / random.choice(["config.json", "points.json"])
    )
    if not target.is_file():
        return
    outside = path.parent / "outside"
    way = random.randrange(5)
    if way == 0:
        target.unlink()
        os.mkfifo(target)
    elif way == 1:
        target.unlink()
        target.mkdir()
    elif way == 2:
        target.unlink()
        target.symlink_to("/dev/zero")
    elif way == 3:
        target.unlink()
        target.symlink_to(outside)
    else:
        target.unlink()
        target.symlink_to(target)


def edit(kind, files, random):
    """Change what the header or the tensors say; the digest stays."""
    header, tensors = kind.take_apart(files)
    header, tensors, text = _edit(kind, header, tensors, random)
    return kind.put_together(files, header, tensors, text)


def forge(kind, files, random):
    """Change what the header or the tensors say, under a new digest."""
    header, tensors = kind.take_apart(files)
    for _ in range(random.choice([1, 1, 2])):
        header, tensors, _ = _edit(kind, header, tensors, random, duplicate=False)
    return kind.put_together(files, _seal(kind, header, tensors), tensors)


def _edit(kind, header, tensors, random, duplicate=True):
    if tensors and random.random() < 0.5:
        return header, _edit_tensors(dict(tensors), random), None
    header = deepcopy(header)
    if not header:
        return header, tensors, None
    holder, name = _find_place(header, random)
    way = random.randrange(8)
    value = holder[name]
    if way == 0:
        del holder[name]
    elif way == 1 and isinstance(holder, dict):
        holder[random.choice(["odd", name + "x", "kind", ""])] = holder.pop(name)
    elif way == 2:
        holder[name] = _wrap(value, random.choice([1, 30, 70]))
    elif way == 3 and isinstance(value, int | float) and not isinstance(value, bool):
        holder[name] = random.choice(
            [value + 1, -value, value * 10, value + 1e-9, str(value)]
        )
    elif way == 4 and header:
        other, place = _find_place(header, random)
        holder[name] = deepcopy(other[place])
    elif way == 5 and isinstance(value, list | str) and value:
        holder[name] = value[:-1] if random.random() < 0.5 else value + value
    elif way == 6 and duplicate and not isinstance(header, list):
        return header, tensors, _say_twice(header, random)
    else:
        holder[name] = deepcopy(random.choice([*VALUES, *NUMBERS]))
    return header, tensors, None


def _find_place(header, random):
    """A random place in nested JSON: what holds it, and its name there."""
    places, waiting = [], [header]
    while waiting:
        holder = waiting.pop()
        names = holder if isinstance(holder, dict) else range(len(holder))
        for name in names:
            places.append((holder, name))
            if isinstance(holder[name], dict | list):
                waiting.append(holder[name])
    return random.choice(places)


def _wrap(value, depth):
    for _ in range(depth):
        value = [value]
    return value


def _say_twice(header, random):
    name = random.choice(sorted(header))
    other = random.choice(VALUES)
    return f"{json.dumps(header)[:-1]}, {json.dumps(name)}: {json.dumps(other)}}}"


def _edit_tensors(tensors, random):
    name = random.choice(sorted(tensors))
    tensor = tensors[name].clone()
    flat, way = tensor.view(-1), random.randrange(9)
    if way == 0:
        del tensors[name]
        return tensors
    if way == 1:
        tensors[random.choice([f"{name}x", "odd", "swag/deviations", "rest/odd"])] = tensor
        return tensors
    if way == 2:
        tensor = tensor[None]
    elif way == 3:
        tensor = flat[:1].clone()
        if random.random() < 0.5 and len(flat):
            tensor = tensor.reshape(())
    elif way == 4:
        tensor = torch.cat([flat, flat])
    elif way == 5:
        kinds = (torch.float16, torch.float32, torch.float64, torch.int64, torch.bool)
        tensor = tensor.to(random.choice(kinds))
    elif way == 6 and len(flat) > 1:
        tensor = flat[random.randrange(len(flat)) :].clone()
    elif way == 7:
        other = random.choice(sorted(tensors))
        tensors[name], tensors[other] = tensors[other], tensors[name]
        return tensors
    elif len(flat):
        at = random.randrange(len(flat))
        if tensor.is_floating_point():
            flat[at] = random.choice(NUMBERS)
        else:
            flat[at] = random.choice([0, 1, 2, 17, 127])
    tensors[name] = tensor
    return tensors


def _seal(kind, header, tensors):
    """A header under the digest it should have, where it can have one."""
    try:
        if isinstance(header, list):
            return _seal_packed(header)
        header = dict(header)
        if kind.tensors and not kind.key:
            dtypes = {n: str(t.dtype).removeprefix("torch.") for n, t in tensors.items()}
            header["tensors"] = {n: [dtypes[n], list(t.shape)] for n, t in tensors.items()}
        header[DIGEST] = find_digest(header, tensors)
    except (StoreError, AttributeError, KeyError, TypeError, ValueError):
        pass
    return header


def _seal_packed(lines):
    for line in lines[1:]:
        line["record"][DIGEST] = find_digest(line["record"], {})
    digests = {line["name"]: line["record"][DIGEST] for line in lines[1:]}
    lines[0][DIGEST] = find_digest({**lines[0], "records": digests}, {})
    return lines
