"""The tables of docs/methods/bayestune.md, from the records of the study `bayestune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean, stdev
from typing import Any

from docs.build.committed import ROOT, note_missing, read_records

from smidgen.report.formats import format_signed
from smidgen.report.many_records.aggregate import SeedMean
from smidgen.report.names import label_method
from smidgen.runtime.record import Record
from smidgen_studies.statistics import (
    OURS,
    Outcomes,
    collect_outcomes,
    describe_verdicts,
    on_tasks_like_these,
    on_these_tasks,
)

_STUDY = "bayestune"
_NONE = note_missing(_STUDY)
_SHORT = ("full", "full-longer", "lora", "lora-longer", "bitfit", "random", "constant")
_METRICS = {"pearson": "Pearson", "matthews": "Matthews", "accuracy": "accuracy"}


@cache
def outcomes() -> Outcomes:
    """Read every record of a scored cell."""
    return collect_outcomes(read_records(_STUDY))


def scores_table() -> str:
    """Every method: what it trains and keeps, its scores by task, and its cost."""
    found = outcomes()
    if not found.methods:
        return _NONE
    headings = [f"{task} ({_metric(found, task)})" for task in found.tasks]
    lines = [
        f"Means over seeds ({_seeds(found)}) ± standard deviation; processor seconds of "
        "choosing (the chain among it) and of tuning, means over tasks:",
        "",
        f"| | trained | delta | {' | '.join(headings)} | seconds |",
        "|---" * (len(headings) + 4) + "|",
    ]
    for method in found.methods:
        results = [each for t in found.tasks for each in found.of(t, method).values()]
        first, timed = results[0], [r["cpu_seconds"] for r in results if "cpu_seconds" in r]
        cells = [f"{first['trained']:,}", _size(first.get("delta_bytes"))]
        cells += [_spread(found, task, method) for task in found.tasks]
        cells.append(
            " + ".join(
                f"{fmean(each[part] for each in timed):.0f}"
                for part in ("choosing", "tuning")
            )
            if timed
            else ""
        )
        lines.append(f"| {_label(method)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def short_table() -> str:
    """For the README: scores by task, and BayesTune less each on average."""
    found = outcomes()
    if OURS not in found.methods:
        return _NONE
    lines = [
        f"Test scores, means over seeds ({_seeds(found)}) ± standard deviation: Pearson on "
        "STS-B, Matthews on CoLA, accuracy on the others; rates chosen on validation data. "
        "Last, BayesTune less each on average of these tasks, with 95 % intervals over "
        "test rows and seeds, bold where zero is outside:",
        "",
        f"| | weights trained | {' | '.join(found.tasks)} | BayesTune less it |",
        "|---" * (len(found.tasks) + 3) + "|",
    ]
    for method in (OURS, *_SHORT):
        results = [each for t in found.tasks for each in found.of(t, method).values()]
        if not results:
            continue
        cells = [f"{results[0]['trained']:,}"]
        cells += [_spread(found, task, method) for task in found.tasks]
        gaps = {} if method == OURS else found.gaps(method)
        cells.append(_gap(on_these_tasks(gaps)) if gaps else "")
        lines.append(f"| {_label(method)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def gaps_table() -> str:
    """BayesTune less every other method, by task and over tasks."""
    found = outcomes()
    if OURS not in found.methods:
        return _NONE
    lines = [
        "BayesTune less the others, with 95 % intervals; bold where zero is outside:",
        "",
        f"| | {' | '.join(found.tasks)} | mean of these tasks | as if tasks were drawn |",
        "|---" * (len(found.tasks) + 3) + "|",
    ]
    for other in found.methods:
        gaps = found.gaps(other)
        if other != OURS and gaps:
            cells = [_gap(gaps.get(task)) for task in found.tasks]
            cells += [_gap(on_these_tasks(gaps)), _ends(on_tasks_like_these(gaps))]
            lines.append(f"| {_label(other)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def verdict_list() -> str:
    """The sentences."""
    return "\n".join(f"- {line}" for line in describe_verdicts(outcomes())) or _NONE


def rates_table() -> str:
    """The learning rates that trials on validation data chose."""
    found = outcomes()
    trained = [method for method in found.methods if method != "constant"]
    if not trained:
        return _NONE
    lines = [
        "Rates of lowest validation NLL after one epoch (of LoRA for longer: after all of "
        "its epochs) at a seed of their own; \\* is the lowest or highest of those tried:",
        "",
        f"| | {' | '.join(found.tasks)} | tried |",
        "|---" * (len(found.tasks) + 2) + "|",
    ]
    for method in trained:
        cells, tried = [], ""
        for task in found.tasks:
            results = next(iter(found.of(task, method).values()), None)
            if results is None:
                cells.append("")
                continue
            choice = results["choice"]
            mark = "\\*" if choice["at_edge"] else ""
            cells.append(f"{choice['values']['learning_rate']:g}{mark}")
            rates = choice["tried"].get("learning_rate", ())
            tried = ", ".join(f"{rate:g}" for rate in rates)
        lines.append(f"| {_label(method)} | {' | '.join(cells)} | {tried} |")
    return "\n".join(lines)


def cost_table() -> str:
    """A step of each stage against a plain step."""
    record = Record.load(ROOT / "bench" / "records" / "bayestune.json")
    config, time = record.config, record.results["time"]
    kept = record.results["numbers kept for each moving weight"]
    rows = {
        "plain, over all weights": ("1", kept["plain"]),
        "plain, over the affine maps": (f"{time['plain, maps']:.2f}", kept["plain"]),
    }
    for name, weights in (("the affine maps", "maps"), ("all weights", "all weights")):
        sampling = time[f"sampling step, {weights}, a sample each 10"]
        burning = time[f"burn-in step, {weights}"]
        rows[f"chain over {name}, a sample every ten steps"] = (
            f"{sampling:.2f} ({burning:.2f} while burning in)",
            kept[f"chain over {weights}"],
        )
    tuning = "tuning 0.5 %"
    rows[f"{tuning} of the weights"] = (f"{time[tuning]:.2f}", kept[tuning])
    return "\n".join(
        [
            f"Processor time over that of a plain step ({config['plain']}), MiniLM, "
            f"{config['batch']} × {config['tokens']} tokens, {config['threads']} thread, "
            f"medians of {config['rounds']} interleaved rounds "
            "(`bench/records/bayestune.json`). Chains are measured against a plain step "
            "over the same weights, tuning against one over all:",
            "",
            "| step | time | numbers kept for each moving weight |",
            "|---|---|---|",
            *(f"| {row} | {cost} | {count:.2g} |" for row, (cost, count) in rows.items()),
        ]
    )


def chains_table() -> str:
    """What chains of other temperatures and noise choose, by task."""
    records = read_records("chains")
    chains = {each.config["key"]: each for each in records if "chain" in each.results}
    found: dict[tuple[float, float], dict[str, str]] = {}
    for (chain, task), trials in _tried(records).items():
        told, diagnosed = chains[chain].config["settings"], chains[chain].results["chain"]
        best = min(trials, key=lambda each: each["validation_nll"])
        hits = best["validation_accuracy"]
        cells = (
            f"{best['validation_nll']:.4f}" + ("" if hits is None else f", {hits:.1%}"),
            f"{best['values']['learning_rate']:g}",
            f"{diagnosed['overlap_of_halves']:.0%}",
            f"{diagnosed['acceptance']:.2f}",
        )
        row = found.setdefault((told["temperature"], told["noise_discount"]), {})
        row[task] = " | ".join(cells)
    if not found:
        return note_missing("chains")
    tasks = list(next(iter(found.values())))
    columns = [f"{task}: validation NLL | rate | halves | prior" for task in tasks]
    lines = [f"| T | γ | {' | '.join(columns)} |", "|---" * (2 + 4 * len(tasks)) + "|"]
    for (temperature, discount), row in sorted(found.items()):
        cells = tuple(row.get(task, " | | | ") for task in tasks)
        lines.append(f"| {temperature:g} | {discount:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _tried(records: Sequence[Record]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """Trials that learned, by the chain they tuned the choice of, and by task."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for record in records:
        told = record.results.get("trial")
        if told and told["validation_nll"] is not None:
            place = (record.config["needs"][0], record.config["data"]["name"])
            found.setdefault(place, []).append(told)
    return found


def _metric(found: Outcomes, task: str) -> str:
    results = next(iter(next(iter(found.results[task].values())).values()))
    return _METRICS[results["metric"]]


def _seeds(found: Outcomes) -> str:
    """The seeds of every task, and where a method has fewer."""
    known = sorted({s for task in found.results.values() for m in task.values() for s in m})
    whole = all(
        sorted(found.of(task, method)) == known
        for task in found.tasks
        for method in found.methods
    )
    return f"{', '.join(map(str, known))}{'' if whole else '; not all are there yet'}"


def _spread(found: Outcomes, task: str, method: str) -> str:
    values = [
        each["methods"][0]["scores"]["metric"]["value"]
        for each in found.of(task, method).values()
    ]
    if not values:
        return ""
    wide = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
    return f"{fmean(values):.3f}{wide}"


def _gap(gap: SeedMean | None) -> str:
    if gap is None:
        return ""
    if gap.low is None or gap.high is None:
        return format_signed(gap.value, 3)
    text = f"{format_signed(gap.value, 3)} ({_ends(gap)})"
    return f"**{text}**" if gap.above_zero or gap.below_zero else text


def _ends(gap: SeedMean) -> str:
    if gap.low is None or gap.high is None:
        return ""
    return f"{format_signed(gap.low, 3)} to {format_signed(gap.high, 3)}"


def _size(count: int | None) -> str:
    if count is None:
        return ""
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


def _label(method: str) -> str:
    """A label as a cell of a table may have it."""
    return label_method(method, "tuning").replace("|", r"\|")
