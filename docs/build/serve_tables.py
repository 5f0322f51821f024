"""The table of docs/serve.md: requests a second beside the plain model, and answers checked."""

from __future__ import annotations

from docs.build.measured import judge_cells, make_rows, of_bench, write_ratio, write_target

from smidgen.report.formats import format_count
from smidgen.runtime.record import Record

_SIDES = ("last layer", "plain", "bare")
_WAYS = {"by the clock": "clock", "by what was computed": "processor"}


@of_bench("serve", *_SIDES)
def serve_table(record: Record) -> str:
    """Throughput of each side, their ratios, and what the check found."""
    config, results = record.config, record.results
    sides = (
        [
            name,
            f"{results[name]['requests a second']:,.1f}",
            f"{results[name]['median, ms']:,.0f}",
            f"{results[name]['95th percentile, ms']:,.0f}",
            f"{results[name]['computing, ms a request']:.1f}",
        ]
        for name in _SIDES
    )
    heads = ("", "requests a second", "median, ms", "95 %, ms", "processor, ms a request")
    ratios = (
        [
            f"{pair}, {word}",
            write_ratio(found[way]),
            *judge_cells(found[way], config["targets"].get(pair), write_target, least=True),
        ]
        for pair, found in results.items()
        if " / " in pair
        for way, word in _WAYS.items()
    )
    checked = results["answers"]
    return "\n".join(
        [
            f"{config['model']}; {config['requests a round']} requests of one sentence a round "
            f"from {config['clients']} clients, median of {config['rounds']} rounds in turns, "
            f"{config['threads that compute']} thread that computes "
            "(`python -m bench serve`). `plain` is "
            f"{config['plain']}; `bare` is {config['bare']}. The machine had "
            f"{config['machine']}.",
            "",
            *make_rows(heads, sides),
            "",
            *make_rows(("throughput", "ratio", "target", "verdict"), ratios),
            "",
            f"Then {format_count(checked['requests'])} requests of "
            f"{format_count(checked['rows'])} rows from {config['checked']['clients']} clients, "
            "each answer held against the predictor called with that row alone: "
            f"{format_count(checked['other answers, sets or flags'])} other answers, sets or "
            "flags; the largest difference of a probability was "
            f"{checked['largest difference of a probability']:.1e}.",
        ]
    )
