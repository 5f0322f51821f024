"""Tables of docs/performance.md: time, memory and floats beside the limit, and how they grow."""

from __future__ import annotations

from docs.build.committed import RESULTS
from docs.build.measured import (
    judge,
    judge_cells,
    make_rows,
    name_threads,
    of_bench,
    write_megabytes,
    write_ratio,
    write_target,
)

from smidgen.report.formats import format_count, format_decimals, format_significant
from smidgen.runtime.record import Record

_LIMIT = ("time / limit", "bytes", "posteriors")
_GROWTH = {
    "width": "Width",
    "depth": "Depth, in layers",
    "length": "Length, in tokens",
    "classes": "Classes",
}


@of_bench("limit", *_LIMIT)
def limit_table(record: Record) -> str:
    """Time over the limit."""
    config = record.config
    rows = (
        [
            name,
            write_ratio(value),
            *judge_cells(value, config["targets"].get(name), write_target),
        ]
        for name, value in record.results["time / limit"].items()
    )
    return "\n".join(
        [
            f"{config['model']}; {config['batch']} × {config['tokens']} tokens, "
            f"{name_threads(config)}, passes of {config['batches in a pass']} batches, median of "
            f"{config['rounds']} rounds (`python -m bench limit`):",
            "",
            *make_rows(("", "time ÷ limit", "target", "verdict"), rows),
        ]
    )


@of_bench("limit", *_LIMIT)
def memory_table(record: Record) -> str:
    """Peak memory beside the limit's."""
    memory = record.results["bytes"]
    rows = (
        [name, write_megabytes(size), write_ratio(size / memory["limit"])]
        for name, size in memory.items()
    )
    return "\n".join(make_rows(("", "MB", "÷ limit's"), rows))


@of_bench("limit", *_LIMIT)
def floats_table(record: Record) -> str:
    """What a posterior of all layers keeps, and what low rank costs in accuracy."""
    found, config = record.results["posteriors"], record.config
    floats = found["floats"]
    full = floats["full factors"]
    rows = (
        [name, format_count(count), f"{format_significant(100 * count / full)} %"]
        for name, count in floats.items()
    )
    key = "floats of low-rank ÷ of full factors"
    share, target = found[key], config["targets"][key]
    error = found["largest relative error of low-rank variances"]
    precisions = ", ".join(
        f"{' and '.join(map(_write_precision, own))} ({way})"
        for way, own in found["precisions"].items()
    )
    return "\n".join(
        [
            *make_rows(("posterior of all layers", "floats", "of full factors"), rows),
            "",
            f"Target of low-rank: at most {100 * target:g} % of the floats: "
            f"{judge(share, target)}. Asked for variances that are at most "
            f"{100 * config['tolerance of low-rank']:g} % off, the largest relative "
            f"error on test sentences was {100 * error:.2g} %; the posterior's own bound is "
            f"{100 * found['its bound']:.2g} %. "
            f"Precisions, as calibrated: {precisions}. {_demo_floats()}",
        ]
    )


def _write_precision(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _demo_floats() -> str:
    record = Record.load(RESULTS / "demo.json")
    subset, methods = record.results["subset"], record.results["methods"]
    floats = next(m["floats"] for m in methods if m["name"] == "sparse-kfac")
    return (
        f"At {subset['percent']:g} percent, as in the demo, {format_count(subset['size'])} of "
        f"{format_count(subset['total'])} weights are stochastic and the posterior stores "
        f"{format_count(floats)} floats."
    )


@of_bench("growth", "percent")
def percent_table(record: Record) -> str:
    """Cost against the percentage of rows and columns, drawn and in numbers."""
    found, config = record.results["percent"], record.config
    sides = list(next(iter(found.values())))
    heads = ("percent", "fit", *(f"predict, {side}" for side in sides if side != "fit"))
    rows = (
        [f"{percent} %", *(write_ratio(each[side]) for side in sides)]
        for percent, each in found.items()
    )
    return "\n".join(
        [
            "![Time over the limit against the percentage of stochastic rows and columns]"
            "(pictures/cost.svg)",
            "",
            f"{config['models']['percent']}, batch of {config['batch']}, "
            f"{name_threads(config)} (`python -m bench growth`):",
            "",
            *make_rows(heads, rows),
        ]
    )


@of_bench("growth", *_GROWTH)
def growth_table(record: Record) -> str:
    """Milliseconds against width, depth, length and classes, with slopes."""
    config = record.config
    lines = [
        f"Milliseconds, median of {config['rounds']} rounds, {name_threads(config)}. The limit "
        f"and predictions are of one batch of {config['batch']}; a fit is of "
        f"{config['batches of a fit']} batches, decompositions included. The last row is "
        "the power of the size that the time grows with (`python -m bench growth`).",
    ]
    for name, label in _GROWTH.items():
        found = record.results[name]
        slopes, least = found["slopes"], config["slopes from"][name]
        rows = [
            [f"{int(size):,}", *(format_significant(1000 * each[side]) for side in slopes)]
            for size, each in found["seconds"].items()
        ]
        sizes = [int(size) for size in found["seconds"]]
        power = "power" if least <= min(sizes) else f"power, from {least:,}"
        rows.append(
            [power, *(format_decimals(slope + 0.0, 2) for slope in slopes.values())]
        )
        lines += ["", f"**{label}** ({config['models'][name]})", ""]
        lines += make_rows((name, *slopes), rows)
    return "\n".join(lines)
