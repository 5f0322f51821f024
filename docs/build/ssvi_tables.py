"""The tables of docs/methods/ssvi.md, from the records of the study `ssvi` and the bench.

The records are those of `smidgen study run ssvi --data FOLDER --out results`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from docs.build.committed import ROOT, note_missing, read_records, read_table

from smidgen.report import fields
from smidgen.report.formats import format_nll
from smidgen.report.many_records.findings import findings
from smidgen.report.many_records.trials import TrialTable, describe_trial, lay_out_trials
from smidgen.runtime.record import Record

STUDY = "ssvi"
NONE = note_missing(STUDY)
IMAGES, RESNET = "Fashion-MNIST", "Fashion-MNIST, residual network"
BASE = "dense-vi"
SPARSE = ("ssvi-10", "ssvi-5")
PRUNED = ("dense-vi-pruned-10", "dense-vi-pruned-5")
POINTS = ("dense", "sparse-10", "sparse-5")
REMOVALS = ("magnitude", "snr", "expected", "exponential", "exponential-snr")
BUDGETS = ("erk", "uniform", "global")
# What the issue asks for: points of accuracy, and ratios to dense VI.
MOST_LOST, MOST_NLL, MOST_BYTES = 0.03, 1.15, 0.15

Seeds = Mapping[int, Mapping[str, Any]]
"""What each seed's record says of one method."""


def seeds_of(method: str, data: str = IMAGES) -> dict[int, Mapping[str, Any]]:
    """What is known of a method, by seed."""
    found = read_table(STUDY)
    entries = found.entries if found else {}
    return {s: each for (d, s, m), each in entries.items() if (d, m) == (data, method)}


def value(entry: Mapping[str, Any], score: str) -> float:
    """A score, or another number of a method."""
    found = entry["scores"].get(score)
    return float(entry[score] if found is None else found["value"])


def _mean(found: Seeds, score: str) -> float:
    return mean(value(each, score) for each in found.values())


def _with_spread(found: Seeds, score: str, form: str, factor: float = 1.0) -> str:
    values = [factor * value(each, score) for each in found.values()]
    text = format(mean(values), form)
    return f"{text} ± {format(stdev(values), form)}" if len(values) > 1 else text


def ratio(found: Seeds, base: Seeds, score: str) -> float | None:
    """The mean over the seeds that both have of one score over the other's."""
    times = ratios(found, base, score)
    return mean(times) if times else None


def ratios(found: Seeds, base: Seeds, score: str) -> list[float]:
    """One score over the other's, for each seed that both have."""
    both = [seed for seed in found if seed in base]
    return [value(found[s], score) / value(base[s], score) for s in both]


def _of_base(found: Seeds, base: Seeds) -> str:
    times = ratio(found, base, "nll")
    return "" if times is None else f"{times:.3f}"


def _with_floor(found: Seeds, score: str) -> str:
    floors = [fields.read_floor(each, score) for each in found.values()]
    known = [floor for floor in floors if floor is not None]
    by_chance = f"{mean(known):.4f}" if known else "–"
    return f"{_mean(found, score):.4f} ({by_chance})"


def _cost(score: str) -> Callable[[Seeds, Seeds], str]:
    def shown_cost(found: Seeds, _: Seeds) -> str:
        known = [each[score] for each in found.values() if score in each]
        return f"{mean(known):.3f}" if known else ""

    return shown_cost


SCORES: dict[str, Callable[[Seeds, Seeds], str]] = {
    "accuracy": lambda own, _: _with_spread(own, "accuracy", ".2f", 100) + " %",
    "NLL": lambda own, _: _with_spread(own, "nll", ".4f"),
    "NLL / dense VI": _of_base,
    "ECE (by chance)": lambda own, _: _with_floor(own, "ece_equal_mass"),
    "Brier": lambda own, _: f"{_mean(own, 'brier'):.4f}",
    "OOD AUROC": lambda own, _: f"{_mean(own, 'ood_auroc'):.3f}",
}
COSTS: dict[str, Callable[[Seeds, Seeds], str]] = {
    "stored": _cost("stored_ratio"),
    "operations done": _cost("operations_ratio"),
    "of active weights": _cost("active_operations_ratio"),
    "step time": _cost("seconds_ratio"),
}


def _table(
    methods: Sequence[str],
    columns: Mapping[str, Callable[[Seeds, Seeds], str]],
    data: str = IMAGES,
) -> str:
    base, rows = seeds_of(BASE, data), {m: seeds_of(m, data) for m in methods}
    rows = {method: found for method, found in rows.items() if found}
    if not rows:
        return NONE
    most = max(map(len, rows.values()))
    lines = [
        f"Mean over {most} seeds (± standard deviation)." if most > 1 else "One seed.",
        "",
        "| | " + " | ".join(columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for found in rows.values():
        label = next(iter(found.values()))["label"]
        few = f" ({len(found)} seeds)" if len(found) < most else ""
        cells = [form(found, base) for form in columns.values()]
        lines.append(f"| {label}{few} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main_table() -> str:
    """Every method as it is and with a temperature: what it scores."""
    names = (BASE, *SPARSE, *PRUNED, *POINTS)
    table = _table([f"{n}{end}" for n in names for end in ("", "-temperature")], SCORES)
    base = seeds_of(BASE)
    if not base:
        return table
    ends = [each["scores"]["accuracy"] for each in base.values()]
    half = 50 * mean(end["high"] - end["low"] for end in ends)
    return (
        f"{table}\n\nBeside the spread over seeds, the test images themselves leave each "
        f"accuracy uncertain by ± {half:.1f} points (95 %)."
    )


def costs_table() -> str:
    """Every method: what it stores, computes and takes, as multiples of dense VI."""
    return _table((BASE, *SPARSE, *PRUNED, *POINTS), COSTS)


def short_table() -> str:
    """SSVI beside its dense twins, for the README."""
    kept = {n: SCORES[n] for n in ("accuracy", "NLL", "ECE (by chance)")}
    names = (BASE, *SPARSE, "dense", "dense-temperature")
    columns = {**kept, "stored / dense VI": COSTS["stored"]}
    return f"Fashion-MNIST, MLP 784-256-256-10. {_table(names, columns)}"


def criteria_table() -> str:
    """The removal scores at 5 %."""
    return _table([_variant(each, "snr") for each in REMOVALS], SCORES)


def budgets_table() -> str:
    """How layers share the weights, at 5 %."""
    return _table([_variant(each, "erk") for each in BUDGETS], SCORES)


def resnet_table() -> str:
    """A small residual network."""
    names = [f"{n}{end}" for n in (BASE, "ssvi-10") for end in ("", "-temperature")]
    return _table(names, {**SCORES, **COSTS}, RESNET)


def _variant(choice: str, usual: str) -> str:
    return "ssvi-5" if choice == usual else f"ssvi-5-{choice}"


def _grids() -> list[TrialTable]:
    """The trials of two settings at once."""
    held = [
        each.results["trial"]
        for each in read_records(STUDY)
        if "trial" in each.results and each.config["data"]["name"] == IMAGES
    ]
    return [table for table in lay_out_trials(held) if len(table.rows) > 1]


def grid_table() -> str:
    """First scale × temperature: validation NLL and accuracy, and how σ moved."""
    tables = _grids()
    if not tables:
        return NONE
    columns = tables[0].columns
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for table in tables:
        for name, row in zip(table.rows, table.trials, strict=True):
            lines.append(
                f"| {table.label}, {name} | {' | '.join(map(describe_trial, row))} |"
            )
    return "\n".join(lines)


def trials_table() -> str:
    """What was chosen for each method."""
    chosen: dict[str, Mapping[str, Any]] = {}
    for record in read_records(STUDY):
        if record.results.get("methods"):
            name = (
                f"{record.config['data']['name']}: {record.results['methods'][0]['label']}"
            )
            chosen.setdefault(name, record.results["choice"])
    if not chosen:
        return NONE
    lines = ["| | rate | T | first scale | weight decay |", "|---|---|---|---|---|"]
    for label, choice in chosen.items():
        if "removal" in label or "budget" in label:
            continue
        gaussian = "VI" in label
        cells = []
        for name in ("learning_rate", "temperature", "scale", "weight_decay"):
            tried = choice["tried"].get(name)
            used = gaussian or name in ("learning_rate", "weight_decay")
            text = f"{choice['values'][name]:g}" if used else ""
            if used and tried:
                text += f" of {tried[0]:g}–{tried[-1]:g}"
            cells.append(text + (" (edge)" if used and name in choice["at_edge"] else ""))
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def found() -> str:
    """What the records say, sentence by sentence."""
    side_by_side = read_table(STUDY)
    if side_by_side is None:
        return NONE
    lines = [_bars(name) for name in SPARSE] + [_robustness()]
    lines += findings(side_by_side, BASE)
    return "\n".join(f"- {line}" for line in lines if line)


def _bars(method: str) -> str:
    own, base = seeds_of(method), seeds_of(BASE)
    both = [seed for seed in own if seed in base]
    times = ratios(own, base, "nll")
    if not times:
        return ""
    lost = [value(base[s], "accuracy") - value(own[s], "accuracy") for s in both]
    stored = [each["stored_ratio"] for each in own.values()]
    bars = (
        (lost, MOST_LOST, f"{100 * mean(lost):.2f} points of accuracy lost (at most 3)"),
        (times, MOST_NLL, f"{mean(times):.3f} × its NLL (at most {MOST_NLL:g})"),
        (stored, MOST_BYTES, f"{mean(stored):.3f} × its bytes (at most {MOST_BYTES:g})"),
    )
    said = "; ".join(f"{text}: {_held(found, most)}" for found, most, text in bars)
    label = own[both[0]]["label"]
    operations, seconds = (
        _mean(own, f"{each}_ratio") for each in ("operations", "seconds")
    )
    return (
        f"{label} against dense VI, {len(both)} seeds: {said}. A training step has "
        f"{operations:.3f} × its operations and takes {seconds:.2f} × its time."
    )


def _held(found: Sequence[float], most: float) -> str:
    """Whether a bound holds in every seed, on average only, or not."""
    if max(found) <= most:
        return "met in every seed"
    return "met on average, not in every seed" if mean(found) <= most else "missed"


def _robustness() -> str:
    parts = []
    for table in _grids():
        known = [t for row in table.trials for t in row if t and t["median_scale"]]
        if known:
            losses = [trial["validation_nll"] for trial in known]
            moved = [trial["median_scale"] for trial in known]
            parts.append(
                f"{table.label} from {format_nll(min(losses))} to {format_nll(max(losses))} "
                f"(median σ/σ₀ from {min(moved):.2g} to {max(moved):.2g})"
            )
    if not parts:
        return ""
    return (
        "Over the grid of first scales and temperatures, log-scales at one rate for all, "
        f"the validation NLL goes: {'; '.join(parts)}."
    )


def bench_table() -> str:
    """The bench of a training step."""
    record = Record.load(ROOT / "bench" / "records" / "ssvi.json")
    config, measured = record.config, record.results
    keys = [key for key in next(iter(measured.values())) if key != "paths"]
    lines = [
        f"{config['model']}, batch {config['batch']}, {config['threads']} thread; each "
        "number is a multiple of dense VI's in the same run (`bench/records/ssvi.json`).",
        "",
        "| density | " + " | ".join(keys) + " |",
        "|---|" + "---|" * len(keys),
    ]
    for name, row in measured.items():
        lines.append(f"| {name} | " + " | ".join(f"{row[key]:g}" for key in keys) + " |")
    return "\n".join(lines)
