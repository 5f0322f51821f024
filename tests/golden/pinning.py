"""How a case's numbers are written down, and how they are compared."""

from __future__ import annotations

import json
import math
import platform
import re
from hashlib import sha256
from importlib import metadata
from pathlib import Path

import torch

NUMBERS = Path(__file__).parent / "numbers"
_LISTED = 64
_DIRECTIONS = 8
# Algebra repeated in another order; what a case may differ by if it says nothing else.
_RELATIVE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-2}
_ABSOLUTE = {torch.float64: 1e-11, torch.float32: 1e-7, torch.float16: 1e-4}


def machine():
    """What sums depend on besides the code."""
    told = Path("/proc/cpuinfo")
    text = told.read_text(encoding="utf-8") if told.is_file() else ""
    keys = ("vendor_id", "cpu family", "model", "model name", "stepping")
    found = {k: re.search(rf"^{k}\s*:\s*(.*)$", text, re.M) for k in keys}
    return {
        "processor": platform.machine(),
        "cpu": ", ".join(m.group(1) for m in found.values() if m),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        **{name: metadata.version(name) for name in ("numpy", "scipy", "transformers")},
    }


def _bytes(tensor):
    plain = tensor.detach().cpu().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def _projected(tensor):
    """Eight random directions and the norm: they change if any value does."""
    flat = tensor.detach().cpu().double().flatten()
    generator = torch.Generator().manual_seed(flat.numel())
    shape = (_DIRECTIONS, flat.numel())
    directions = torch.randn(shape, dtype=torch.float64, generator=generator)
    along = (directions * flat).sum(1) / flat.numel() ** 0.5
    return [*along.tolist(), float(flat.norm())]


def _plain(value):
    """Numbers as JSON has them: infinities and NaN by name."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return [_plain(each) for each in value] if isinstance(value, list) else value


def pinned(value):
    """One number, text, list or tensor, as it is written down."""
    if not isinstance(value, torch.Tensor):
        return _plain(value)
    if value.dtype == torch.bool:
        value = value.to(torch.uint8)
    few = value.numel() <= _LISTED
    found = {
        "shape": list(value.shape),
        "dtype": str(value.dtype).removeprefix("torch."),
        "sha256": sha256(_bytes(value)).hexdigest(),
    }
    values = value.detach().cpu().flatten().tolist() if few else _projected(value)
    return {**found, "values" if few else "projected": _plain(values)}


def path_of(group):
    return NUMBERS / f"{group}.json"


def read(group):
    path = path_of(group)
    return json.loads(path.read_text("utf-8")) if path.is_file() else {"cases": {}}


def write(group, cases):
    """One line for each number, so that a change of one is one line of a diff."""
    lines = ["{", f'"machine": {json.dumps(machine())},', '"cases": {']
    for place, (name, numbers) in enumerate(sorted(cases.items())):
        rows = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in numbers.items()]
        end = "," if place + 1 < len(cases) else ""
        lines += [f" {json.dumps(name)}: {{", ",\n".join(rows), f" }}{end}"]
    text = "\n".join([*lines, "}", "}", ""])
    json.loads(text)
    NUMBERS.mkdir(exist_ok=True)
    path_of(group).write_text(text, "utf-8")


def differences(found, wanted, *, relative=None, bitwise=True, sums=True):
    """List what differs from the numbers that are written down.

    Args:
        found: The numbers of a case, as `pinned` gives them.
        wanted: Those that are written down.
        relative: A tolerance of the case's own.
        bitwise: Compare every bit; this must be the machine of the numbers.
        sums: Compare within the tolerance at all.

    Returns:
        A line for each.
    """
    lines = [f"{n}: not there any more" for n in wanted if n not in found]
    lines += [f"{n}: not written down" for n in found if n not in wanted]
    for name in wanted.keys() & found.keys():
        told = _different(found[name], wanted[name], relative, bitwise, sums)
        lines += [f"{name}: {told}"] if told else []
    return sorted(lines)


def _different(found, wanted, relative, bitwise, sums):
    if bitwise:
        return None if found == wanted else f"is {_short(found)}, was {_short(wanted)}"
    kind = torch.float64
    if isinstance(wanted, dict):
        for what in ("shape", "dtype"):
            if found[what] != wanted[what]:
                return f"{what} is {found[what]}, was {wanted[what]}"
        kind = getattr(torch, wanted["dtype"])
        key = "values" if "values" in wanted else "projected"
        found, wanted = found[key], wanted[key]
    if not sums:
        return None
    near = _near(found, wanted, kind, relative)
    return None if near else f"is {_short(found)}, was {_short(wanted)}"


def _near(found, wanted, kind, relative):
    if isinstance(wanted, list):
        same = isinstance(found, list) and len(found) == len(wanted)
        return same and all(
            _near(one, two, kind, relative) for one, two in zip(found, wanted, strict=True)
        )
    if not isinstance(wanted, float) or not isinstance(found, float):
        return found == wanted
    share = max(relative or 0.0, _RELATIVE.get(kind, 1e-9))
    least = max((relative or 0.0) * 1e-2, _ABSOLUTE.get(kind, 1e-11))
    return math.isclose(found, wanted, rel_tol=share, abs_tol=least)


def _short(value):
    text = json.dumps(value)
    return text if len(text) < 300 else text[:300] + "…"
