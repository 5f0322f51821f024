"""Write the tables of README and docs from committed records: python -m docs.build.readme.

Each table stands between two marks, `<!-- NAME -->` and `<!-- end NAME -->`, in any page; a
test checks that it agrees with the records.
"""

from __future__ import annotations

import re
from statistics import mean

from docs.build import (
    claims,
    cost_tables,
    decision_tables,
    ssvi_tables,
    tuning_tables,
    zoo_tables,
)
from docs.build.committed import RESULTS, ROOT, read_packed, recipe_records

from smidgen.report.fields import read_floor, read_label
from smidgen.report.formats import format_count, format_nll, format_rate, format_ratio
from smidgen.report.many_records.aggregate import average_groups
from smidgen.report.one_record.tables import score_rows
from smidgen.runtime.record import Record

README = ROOT / "README.md"
PAGES = tuple(
    page
    for page in (README, *sorted((ROOT / "docs").rglob("*.md")))
    if "<!-- end " in page.read_text(encoding="utf-8")
)


def demo() -> str:
    """The demo: one run, a row per method."""
    record = Record.load(RESULTS / "demo.json")
    sizes = record.results["data"]
    lines = [
        f"`make demo`: MiniLM fine-tuned on {sizes['train']:,} movie-review sentences, "
        f"{sizes['test']:,} test sentences, seed {record.seed}.",
        "",
        "| | accuracy | NLL | ECE (by chance) | floats stored | time / forward |",
        "|---|---|---|---|---|---|",
    ]
    for row in score_rows(record):
        cells = {cell.score: cell.plain_text for cell in row.cells}
        scores = ("accuracy", "nll", "ece_equal_mass", "floats", "relative_seconds")
        texts = [cells[score] for score in scores]
        lines.append(f"| {row.label} | {' | '.join(texts)} |")
    return "\n".join(lines)


SHOWN = {
    "MAP": "MAP",
    "temperature": "Temperature scaling",
    "last layer, joint": "Last layer",
    "10 %, joint, by group": "Sparse-KFAC 10 %",
    "10 % and the head, joint, by group": "Sparse-KFAC 10 % and the head",
}


def tasks() -> str:
    """Four tasks: mean NLL and ECE over seeds, and how often the difference is clear."""
    by_task = recipe_records()
    least = min(len(records) for records in by_task.values())
    lines = [
        f"MiniLM fine-tuned on four tasks, {least} seeds each: mean test NLL / ECE, and on "
        "how many of all pairs of task and seed the NLL is clearly below (above) "
        "temperature scaling's:",
        "",
        f"| | {' | '.join(by_task)} | clearly below (above) |",
        "|---" * (len(by_task) + 2) + "|",
    ]
    for name, label in SHOWN.items():
        cells = []
        for records in by_task.values():
            found = [record.results["recipes"][name] for record in records]
            scores = (mean(f["nll"] for f in found), mean(f["ece"] for f in found))
            cells.append(f"{format_nll(scores[0])} / {format_rate(scores[1])}")
        lines.append(f"| {label} | {' | '.join(cells)} | {_clear(by_task, name)} |")
    return "\n".join(lines)


def _clear(by_task: dict[str, list[Record]], name: str) -> str:
    """On how many pairs a recipe is clearly below, or above, temperature scaling."""
    if name in ("MAP", "temperature"):
        return ""
    gaps = [
        record.results["differences_to_temperature"][name]
        for records in by_task.values()
        for record in records
    ]
    below, above = (sum(gap["high"] < 0 for gap in gaps), sum(g["low"] > 0 for g in gaps))
    return f"{below} ({above}) of {len(gaps)}"


def reliability() -> str:
    """The suites behind the promises on reliability."""
    record = Record.load(ROOT / "bench" / "records" / "reliability.json")
    suites, results = record.config["suites"], record.results
    counts = results["mutations"]
    total, refused, forged = (
        sum(n for way, n in counts.items() if way.endswith(ending))
        for ending in ("", "refused", "valid")
    )
    return "\n".join(
        [
            "| what | suite | passed | seconds |",
            "|---|---|---|---|",
            *(
                f"| {name} | `{suite}` | {results[name]['passed']:,} | "
                f"{results[name]['seconds']:.0f} |"
                for name, suite in suites.items()
            ),
            "",
            f"On {record.config['processes']} processes of a machine of "
            f"{record.machine['cores']} cores. Of {total:,} mutations of files {refused:,} "
            f"were refused, {forged:,} were forged with a digest of their own and valid, "
            f"and {total - refused - forged:,} changed nothing that is read; "
            "none was believed with another meaning.",
        ]
    )


def recipes() -> str:
    """Ways to choose precision and temperature: mean test NLL by task."""
    by_task = recipe_records()
    heads = [
        f"{task} ({len(records)} seed{'s' * (len(records) > 1)})"
        for task, records in by_task.items()
    ]
    lines = [
        "Mean test NLL over seeds; each chosen on validation data only "
        "(`results/recipes.jsonl.gz`, by a script before the study `recipes`).",
        "",
        f"| | {' | '.join(heads)} | clearly below (above) temperature |",
        "|---" * (len(heads) + 2) + "|",
    ]
    for name in next(iter(by_task.values()))[0].results["recipes"]:
        means = [
            format_nll(mean(r.results["recipes"][name]["nll"] for r in records))
            for records in by_task.values()
        ]
        lines.append(f"| {name} | {' | '.join(means)} | {_clear(by_task, name)} |")
    return "\n".join(lines)


# What changes from one recipe to another, and pairs whose test scores were seen before the
# group precisions and the whole head were settled.
STEPS = {
    "a precision instead of a temperature": ("temperature", "10 %, precision alone"),
    "both instead of a precision": ("10 %, precision alone", "10 %, joint"),
    "a precision for each group": ("10 %, joint", "10 %, joint, by group"),
    "and the whole head": (
        "10 %, joint, by group",
        "10 % and the head, joint, by group",
    ),
    "**all of that: the default, with the head**": (
        "temperature",
        "10 % and the head, joint, by group",
    ),
    "a precision for each layer instead of each group": (
        "10 % and the head, joint, by group",
        "10 % and the head, joint, by layer",
    ),
    "the last layer alone instead": (
        "10 % and the head, joint, by group",
        "last layer, joint",
    ),
    "30 % instead of 10 %": ("10 %, joint", "30 %, joint"),
    "rows and columns by activation": ("10 %, joint", "10 % by activation, joint"),
    "rows and columns by curvature": ("10 %, joint", "10 % by curvature, joint"),
    "rows and columns at random": ("10 %, joint", "10 % by random, joint"),
    "`ekfac` instead of `kron`": ("10 %, joint", "10 % ekfac, joint"),
    "evidence instead of validation data": (
        "10 %, joint",
        "10 %, evidence by scalar, temperature",
    ),
}
SEEN = {("SST-2", 0), ("SST-2", 1), ("MRPC", 0)}


def steps() -> str:
    """What each step brings: mean differences over tasks and seeds, with intervals."""
    by_task = recipe_records()
    fresh = {
        task: [r for r in records if (task, r.seed) not in SEEN]
        for task, records in by_task.items()
    }
    counts = [sum(map(len, some.values())) for some in (by_task, fresh)]
    lines = [
        "Change of test NLL: the mean over seeds of each task, averaged over these "
        f"{len(by_task)} tasks, with the 95 % interval that the spread over seeds gives "
        f"(it says nothing of other tasks); of all {counts[0]} pairs of task and seed, and "
        f"of the {counts[1]} drawn after the default was settled:",
        "",
        f"| | all {counts[0]} | fresh {counts[1]} |",
        "|---|---|---|",
    ]
    for step, (before, after) in STEPS.items():
        cells = [_change(some, before, after) for some in (by_task, fresh)]
        lines.append(f"| {step} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _change(by_task: dict[str, list[Record]], before: str, after: str) -> str:
    gaps = [
        [
            r.results["recipes"][after]["nll"] - r.results["recipes"][before]["nll"]
            for r in rs
        ]
        for rs in by_task.values()
    ]
    found = average_groups(gaps)
    return f"{found.value:+.4f} ({found.low:+.4f} to {found.high:+.4f})"


def weight_samples() -> str:
    """Weight samples beside the linearised predictive."""
    lines = [
        "Test NLL; precision and temperature of each chosen on the same 300 validation "
        "examples (`results/weight-samples.jsonl.gz`, by a script before the study "
        "`weight-samples`).",
        "",
        "| | temperature | linearised | weight samples | samples − linearised |",
        "|---|---|---|---|---|",
    ]
    for record in read_packed("weight-samples").values():
        found, gaps = record.results["methods"], record.results["differences"]
        cells = [format_nll(found[n]["nll"]) for n in ("temperature", "linearised")]
        cells.append(format_nll(found["weight samples"]["nll"]))
        gap = gaps["weight samples to linearised"]
        cells.append(f"{gap['value']:+.4f} ({gap['low']:+.4f} to {gap['high']:+.4f})")
        name = f"{record.config['task']}, seed {record.seed}"
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def swag() -> str:
    """SWAG's schemes beside Laplace's on MRPC."""
    names = {"Laplace": "mrpc-seed0", "SWAG": "mrpc-swag-seed0"}
    found = {kind: read_packed("ramp")[name] for kind, name in names.items()}
    config = found["SWAG"].config
    lines = [
        f"MRPC, MiniLM, one seed, {found['SWAG'].results['data']['test']:,} test pairs; "
        "sizes, rates and temperatures chosen on validation data. SWAG with "
        f"{config['steps']} steps, K = {config['rank']} and {config['samples']} samples: "
        "fewer than the paper's 2,000 steps and 50 samples.",
        "",
        "| | weights | floats | NLL | ECE (by chance) | time / forward |",
        "|---|---|---|---|---|---|",
    ]
    for kind, record in found.items():
        for method in record.results["methods"]:
            plain = method["name"] in ("map", "temperature")
            if plain and kind == "SWAG":
                continue
            label = read_label(method) if plain else f"{kind}: {read_label(method)}"
            scores = method["scores"]
            slower = method.get("relative_seconds")
            floor = read_floor(method, "ece_equal_mass")
            by_chance = "–" if floor is None else format_rate(floor)
            cells = [
                format_count(method.get("weights") or 0),
                format_count(method["floats"]),
                format_nll(scores["nll"]["value"]),
                f"{format_rate(scores['ece_equal_mass']['value'])} ({by_chance})",
                "" if slower is None else format_ratio(slower),
            ]
            lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def samples() -> str:
    """The benchmark of weight samples."""
    record = Record.load(ROOT / "bench" / "records" / "samples.json")
    lines = ["| | time ÷ time |", "|---|---|"]
    lines += [
        f"| {name} | {format_ratio(value)} |" for name, value in record.results.items()
    ]
    return "\n".join(lines)


TABLES = {
    "demo": demo,
    "tasks": tasks,
    "recipes": recipes,
    "steps": steps,
    "weight-samples": weight_samples,
    "samples": samples,
    "swag": swag,
    **cost_tables.TABLES,
    "bayestune-verdict": tuning_tables.verdict_list,
    "bayestune-scores": tuning_tables.scores_table,
    "bayestune-gaps": tuning_tables.gaps_table,
    "bayestune-rates": tuning_tables.rates_table,
    "bayestune-chains": tuning_tables.chains_table,
    "bayestune-cost": tuning_tables.cost_table,
    "bayestune-short": tuning_tables.short_table,
    "ssvi-short": ssvi_tables.short_table,
    "ssvi-main": ssvi_tables.main_table,
    "reliability": reliability,
    "ssvi-criteria": ssvi_tables.criteria_table,
    "ssvi-grid": ssvi_tables.grid_table,
    "ssvi-costs": ssvi_tables.costs_table,
    "ssvi-budgets": ssvi_tables.budgets_table,
    "ssvi-resnet": ssvi_tables.resnet_table,
    "ssvi-trials": ssvi_tables.trials_table,
    "ssvi-found": ssvi_tables.found,
    "ssvi-bench": ssvi_tables.bench_table,
    **claims.TABLES,
    **decision_tables.TABLES,
    **zoo_tables.TABLES,
}


def written(text: str) -> str:
    """Fill every table that a page has marks for."""
    for name, table in TABLES.items():
        if f"<!-- {name} -->" not in text:
            continue
        pattern = rf"(<!-- {name} -->\n).*?(\n?<!-- end {name} -->)"
        filled = table()
        text = re.sub(
            pattern,
            lambda m, filled=filled: m[1] + filled + "\n" + m[2].lstrip("\n"),
            text,
            flags=re.DOTALL,
        )
    return text


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
