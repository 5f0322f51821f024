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
from studies import ssvi_tables

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RECIPES = ROOT / "docs" / "methods" / "recipes.md"
SSVI = ROOT / "docs" / "methods" / "ssvi.md"


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


def recipes() -> str:
    """Ways to choose precision and temperature: mean test NLL by task."""
    by_task: dict[str, list[Record]] = {}
    for path in sorted((ROOT / "results" / "recipes").glob("*.json")):
        record = Record.load(path)
        by_task.setdefault(record.config["task"], []).append(record)
    heads = [
        f"{task} ({len(records)} seed{'s' * (len(records) > 1)})"
        for task, records in by_task.items()
    ]
    lines = [
        "Mean test NLL over seeds; each chosen on validation data only "
        "(`results/recipes/`, `studies/recipes.py`).",
        "",
        f"| | {' | '.join(heads)} | clearly below / above temperature |",
        "|---" * (len(heads) + 2) + "|",
    ]
    for name in next(iter(by_task.values()))[0].results["recipes"]:
        means = [
            nll(mean(r.results["recipes"][name]["nll"] for r in records))
            for records in by_task.values()
        ]
        gaps = [
            record.results["differences_to_temperature"][name]
            for records in by_task.values()
            for record in records
            if name not in ("MAP", "temperature")
        ]
        below = sum(gap["high"] < 0 for gap in gaps)
        above = sum(gap["low"] > 0 for gap in gaps)
        shown = f"{below} / {above} of {len(gaps)}" if gaps else ""
        lines.append(f"| {name} | {' | '.join(means)} | {shown} |")
    return "\n".join(lines)


def peers() -> str:
    """The benchmark against laplace-torch."""
    record = Record.load(ROOT / "bench" / "records" / "peers.json")
    lines = [
        f"{record.config['peer']} ÷ smidgen, KFAC of all affine maps, "
        f"{record.config['threads']} threads, each in a process of its own "
        "(`python -m bench peers`):",
        "",
        "| | fit time | predict time | fit memory | predict memory |",
        "|---|---|---|---|---|",
    ]
    for model, found in record.results.items():
        for name, ratios in found["peer_over_smidgen"].items():
            cells = [
                f"{ratios[key]:.3g}×"
                for key in ("fit", "predict", "fit bytes", "predict bytes")
            ]
            lines.append(f"| {model}, {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def ramping() -> str:
    """The benchmark of the ramping study."""
    record = Record.load(ROOT / "bench" / "records" / "ramp.json")
    lines = ["| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in record.results.items()]
    return "\n".join(lines)


TABLES = {
    "demo": demo,
    "sst-2": sst2,
    "recipes": recipes,
    "cost": cost,
    "peers": peers,
    "ramping": ramping,
    "ssvi-main": ssvi_tables.main_table,
    "ssvi-criteria": ssvi_tables.criteria_table,
    "ssvi-grid": ssvi_tables.grid_table,
    "ssvi-others": ssvi_tables.others_table,
    "ssvi-bench": ssvi_tables.bench_table,
}


def written(text: str) -> str:
    """Fill every table that a page has marks for."""
    for name, table in TABLES.items():
        if f"<!-- {name} -->" not in text:
            continue
        pattern = rf"(<!-- {name} -->\n).*?(\n?<!-- end {name} -->)"
        found = table()
        text = re.sub(
            pattern,
            lambda m, found=found: m[1] + found + "\n" + m[2].lstrip("\n"),
            text,
            flags=re.DOTALL,
        )
    return text


if __name__ == "__main__":
    for page in (README, RECIPES, SSVI):
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
