"""The tables of docs/methods/ssvi.md, from the records of `studies.ssvi` and the bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from smidgen.record import Record

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results" / "ssvi"
_HEADINGS = (
    "accuracy",
    "NLL",
    "NLL / dense VI",
    "ECE",
    "Brier",
    "OOD AUROC",
    "stored / dense VI",
    "operations / dense VI",
    "step time / dense VI",
)
_ROWS = ("dense VI", "SSVI 10 %", "SSVI 5 %", "dense", "sparse 10 %", "sparse 5 %")
_PRUNED = {
    "dense VI, 10 % kept by SNR": "snr 0.1",
    "dense VI, 10 % kept by magnitude": "magnitude 0.1",
    "dense VI, 5 % kept by SNR": "snr 0.05",
    "dense VI, 5 % kept by magnitude": "magnitude 0.05",
}

Results = Mapping[str, Any]


def cells(name: str) -> list[Results]:
    """Results of all seeds of a cell, in order."""
    slug = name.replace(" ", "-").replace("%", "percent")
    paths = sorted(RECORDS.glob(f"{slug}-seed*.json"))
    return [Record.load(path).results for path in paths]


def main_table() -> str:
    """Every method at its chosen setting, over seeds."""
    base = cells("main dense VI")
    rows = {name: cells(f"main {name}") for name in _ROWS}
    rows |= {
        label: [each["pruned"][key] for each in base] for label, key in _PRUNED.items()
    }
    order = [*_ROWS[:3], *_PRUNED, *_ROWS[3:]]
    return "\n".join(_table({name: rows[name] for name in order}, base))


def short_table() -> str:
    """SSVI beside its dense twins, for the README."""
    base, kept = cells("main dense VI"), ("accuracy", "NLL", "ECE", "stored / dense VI")
    rows = {name: cells(f"main {name}") for name in (*_ROWS[:3], "dense")}
    lines = _table(rows, base, kept)
    return "\n".join(["Fashion-MNIST, MLP 784-256-256-10. " + lines[0], *lines[1:]])


def criteria_table() -> str:
    """The removal scores at 5 %, over seeds."""
    names = ("magnitude", "snr", "expected", "exponential", "exponential-snr")
    rows = {name: cells(f"criterion {name}") for name in names}
    rows["snr"] = cells("main SSVI 5 %")
    return "\n".join(_table(rows, cells("main dense VI"), _HEADINGS[:6]))


def grid_table() -> str:
    """First scale × temperature on seed 0: accuracy and NLL on test data."""
    scales, temperatures = ("0.01", "0.1", "1"), ("1", "0.1", "0.01")
    lines = [
        "| | " + " | ".join(f"T = {each}" for each in temperatures) + " |",
        "|---|" + "---|" * len(temperatures),
    ]
    for name in ("dense VI", "SSVI 5 %"):
        for scale in scales:
            shown = []
            for temperature in temperatures:
                found = cells(f"grid {name} scale{scale} temperature{temperature}")
                shown += [
                    f"{100 * each['accuracy']:.1f} %, {each['nll']:.3f}" for each in found
                ]
            lines.append(f"| {name}, first scale {scale} | {' | '.join(shown)} |")
    return "\n".join(lines)


def others_table() -> str:
    """Budgets at 5 %, and a small residual network, on seed 0."""
    first = cells("main SSVI 5 %")[:1]
    rows = {
        "5 %, budget erk": first,
        "5 %, budget uniform": cells("budget uniform"),
        "5 %, budget global": cells("budget global"),
    }
    lines = _table(rows, cells("main dense VI")[:1], _HEADINGS[:6])
    words = {
        "resnet equal": "6 epochs at one setting for both",
        "resnet": "3 epochs at what was chosen for the MLP, rates ten times apart",
    }
    for cell, setting in words.items():
        images = {name: cells(f"{cell} {name}") for name in ("dense VI", "SSVI 10 %")}
        if all(images.values()):
            lines += [
                "",
                "A residual network of 8, 16 and 32 channels on 12,000 images, scored on "
                f"2,000 test images; {setting}.",
                "",
                *_table(images, images["dense VI"]),
            ]
    return "\n".join(lines)


def bench_table() -> str:
    """The bench of a training step."""
    record = Record.load(ROOT / "bench" / "records" / "ssvi.json")
    config, found = record.config, record.results
    keys = [key for key in next(iter(found.values())) if key != "paths"]
    lines = [
        f"{config['model']}, batch {config['batch']}, {config['threads']} thread; each "
        "number is a multiple of dense VI's in the same run (`bench/records/ssvi.json`).",
        "",
        "| density | " + " | ".join(keys) + " |",
        "|---|" + "---|" * len(keys),
    ]
    for name, row in found.items():
        lines.append(f"| {name} | " + " | ".join(f"{row[key]:g}" for key in keys) + " |")
    return "\n".join(lines)


def _table(
    rows: Mapping[str, Sequence[Results]],
    base: Sequence[Results],
    headings: Sequence[str] = _HEADINGS,
) -> list[str]:
    seeds = max((len(found) for found in rows.values()), default=0)
    lines = [
        f"Mean over {seeds} seeds (± standard deviation)." if seeds > 1 else "One seed.",
        "",
        "| | " + " | ".join(headings) + " |",
        "|---|" + "---|" * len(headings),
    ]
    for name, found in rows.items():
        if found:
            shown = _cells(found, base)
            lines.append(f"| {name} | " + " | ".join(shown[h] for h in headings) + " |")
    return lines


def _cells(found: Sequence[Results], base: Sequence[Results]) -> dict[str, str]:
    """Formatted scores of a row; ratios are seed by seed."""

    def average(score: str) -> float:
        return mean(each[score] for each in found)

    def spread(score: str) -> float:
        return stdev(each[score] for each in found) if len(found) > 1 else 0.0

    def ratio(score: str) -> float:
        pairs = zip(found, base, strict=False)
        return mean(each[score] / whole[score] for each, whole in pairs)

    counted = "flops_ratio" in found[0]
    some = len(found) > 1
    return {
        "accuracy": f"{100 * average('accuracy'):.2f}"
        + (f" ± {100 * spread('accuracy'):.2f}" if some else "")
        + " %",
        "NLL": f"{average('nll'):.4f}" + (f" ± {spread('nll'):.4f}" if some else ""),
        "NLL / dense VI": f"{ratio('nll'):.3f}",
        "ECE": f"{average('ece'):.4f}",
        "Brier": f"{average('brier'):.4f}",
        "OOD AUROC": f"{average('ood_auroc'):.3f}",
        "stored / dense VI": f"{ratio('stored_bytes'):.3f}",
        "operations / dense VI": f"{average('flops_ratio'):.3f}" if counted else "",
        "step time / dense VI": f"{average('seconds_ratio'):.2f}" if counted else "",
    }
