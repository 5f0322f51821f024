"""Write the README's tables from the committed records: python -m studies.readme.

Each table stands between two marks, `<!-- NAME -->` and `<!-- end NAME -->`; a test checks
that what stands there is what the records say.
"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import mean

from smidgen.record import Record
from smidgen.report.tables import count, nll, percent, rate, score_rows, times

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def demo() -> str:
    """The demo: one run, a row per method."""
    record = Record.load(ROOT / "results" / "demo.json")
    sizes = record.results["data"]
    lines = [
        f"`make demo`: MiniLM fine-tuned on {sizes['train']:,} movie-review sentences, "
        f"{sizes['test']:,} test sentences, seed {record.seed}.",
        "",
        "| | accuracy | NLL | ECE | floats stored | time / forward |",
        "|---|---|---|---|---|---|",
    ]
    for row in score_rows(record):
        cells = {cell.score: cell.text for cell in row.cells}
        wanted = ("accuracy", "nll", "ece_equal_mass", "floats", "relative_seconds")
        lines.append(
            f"| {row.label} | " + " | ".join(cells[each] for each in wanted) + " |"
        )
    return "\n".join(lines)


def sst2() -> str:
    """SST-2: the mean over seeds, and how often the difference is clear."""
    records = [Record.load(p) for p in sorted((ROOT / "results").glob("sst-2-seed*.json"))]
    sizes = records[0].results["data"]
    lines = [
        f"SST-2, MiniLM fine-tuned on {sizes['train']:,} sentences, {sizes['test']} test "
        f"sentences, mean of {len(records)} seeds:",
        "",
        "| | accuracy | NLL | ECE | NLL clearly below temperature scaling |",
        "|---|---|---|---|---|",
    ]
    for index, method in enumerate(records[0].results["methods"]):
        runs = [record.results["methods"][index] for record in records]

        def average(score: str, runs: list[dict] = runs) -> float:
            return mean(run["scores"][score]["value"] for run in runs)

        clear = sum(_clearly_below(record, method["name"]) for record in records)
        shown = (
            "" if method["name"] in ("map", "temperature") else f"{clear} of {len(runs)}"
        )
        lines.append(
            f"| {method['label']} | {percent(average('accuracy'))} | {nll(average('nll'))} "
            f"| {rate(average('ece_equal_mass'))} | {shown} |"
        )
    return "\n".join(lines)


def _clearly_below(record: Record, name: str) -> bool:
    return any(
        gap["high"] < 0
        for gap in record.results["differences"]
        if (gap["method"], gap["baseline"], gap["score"]) == (name, "temperature", "nll")
    )


def cost() -> str:
    """The benchmark against the limit."""
    record = Record.load(ROOT / "bench" / "records" / "limit.json")
    config, ratios = record.config, record.results
    lines = [
        f"MiniLM, {config['batch']} × {config['tokens']} tokens, {config['threads']} "
        "threads. The limit is a bare forward pass and one activation-only backward pass "
        f"on the same batch; passes of {config['batches in a pass']} batches, median of "
        f"{config['rounds']} rounds (`make bench`).",
        "",
        "| | time ÷ limit |",
        "|---|---|",
        *(f"| {name} | {times(ratio)} |" for name, ratio in ratios.items()),
    ]
    demo_record = Record.load(ROOT / "results" / "demo.json")
    subset = demo_record.results["subset"]
    floats = next(
        m["floats"] for m in demo_record.results["methods"] if m["name"] == "sparse-kfac"
    )
    lines += [
        "",
        f"At {subset['percent']:g} percent, {count(subset['size'])} of "
        f"{count(subset['total'])} weights are stochastic and the posterior stores "
        f"{count(floats)} floats.",
    ]
    return "\n".join(lines)


TABLES = {"demo": demo, "sst-2": sst2, "cost": cost}


def written(text: str) -> str:
    """Fill every table of a README."""
    for name, table in TABLES.items():
        pattern = rf"(<!-- {name} -->\n).*?(\n<!-- end {name} -->)"
        found = table()
        text, changed = re.subn(
            pattern, lambda m, found=found: m[1] + found + m[2], text, flags=re.DOTALL
        )
        if not changed:
            raise SystemExit(f"README.md has no marks for the table {name!r}.")
    return text


if __name__ == "__main__":
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")
