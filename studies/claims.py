"""What the records say of the papers' claims: the generated parts of docs/findings.md."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean

from smidgen.record import Record
from smidgen.report.across import Across, Spread, gather, spread, stratified
from smidgen.report.findings import findings
from smidgen.report.tables import nll, rate, signed
from smidgen.study.choices import LABELS
from studies.committed import ROOT, missing, records_of

_FAMILIES = {"laplace": "Laplace", "swag": "SWAG"}


def found_by(study: str, baseline: str) -> Callable[[], str]:
    """What a study's page says it found, as a list."""

    def text() -> str:
        shown = [each for each in records_of(study) if each.results.get("methods")]
        if not shown:
            return missing(study)
        return "\n".join(f"- {line}" for line in findings(gather(shown), baseline))

    return text


def temperature_claim() -> str:
    """Laplace on a tenth of the rows and columns against temperature scaling."""
    return _recipe_gap("10 %, joint, by group", "temperature")


def last_layer_claim() -> str:
    """Sparse-KFAC against the last layer alone."""
    return _recipe_gap("10 %, joint, by group", "last layer, joint")


def _recipe_gap(first: str, second: str) -> str:
    gaps: dict[str, list[float]] = {}
    for path in sorted((ROOT / "results" / "recipes").glob("*.json")):
        record = Record.load(path)
        scored = record.results["recipes"]
        gap = scored[first]["nll"] - scored[second]["nll"]
        gaps.setdefault(record.config["task"], []).append(gap)
    parts = ", ".join(f"{task} {signed(mean(own))}" for task, own in gaps.items())
    whole = stratified(list(gaps.values()))
    return (
        f"Test NLL of “{first}” less that of “{second}”: {_interval(whole)} over "
        f"{whole.count} pairs of task and seed, tasks counting alike, on these test rows "
        f"({parts})."
    )


def _interval(gap: Spread) -> str:
    if gap.low is None or gap.high is None:
        return signed(gap.value)
    return f"{signed(gap.value)} (95 % {signed(gap.low)} to {signed(gap.high)})"


def schemes_claim() -> str:
    """The schemes of one ramping study, one seed."""
    record = Record.load(ROOT / "results" / "ramp" / "mrpc-seed0.json")
    lines = [
        f"{record.config['title']}, seed {record.seed}, size chosen on validation data; "
        "one seed, so a look and no verdict:",
        "",
        "| | test NLL | ECE | weights stochastic |",
        "|---|---|---|---|",
    ]
    for method in record.results["methods"]:
        scores, share = method["scores"], method.get("fraction")
        lines.append(
            f"| {method['label']} | {nll(scores['nll']['value'])} | "
            f"{rate(scores['ece_equal_mass']['value'])} | "
            f"{'' if share is None else f'{100 * share:.3g} %'} |"
        )
    return "\n".join(lines)


def uci_table() -> str:
    """Five percent of the weights less all of them, by both posteriors, by data set."""
    across = gather(records_of("uci"))
    level = 5
    lines = [
        f"Mean test NLL of {level} % of the weights less that of all of them, "
        f"{len(across.seeds(across.data[0]))} splits; bold where the 95 % interval leaves "
        "zero out:",
        "",
        f"| | {' | '.join(across.data)} |",
        "|---" * (len(across.data) + 1) + "|",
    ]
    for family, name in _FAMILIES.items():
        for by in ("magnitude", "variance", "random"):
            cells = [_less_all(across, data, family, by, level) for data in across.data]
            lines.append(f"| {name}, {LABELS[by]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _less_all(across: Across, data: str, family: str, by: str, level: int) -> str:
    found: dict[tuple[str, float], dict[int, float]] = {}
    for record in across.records_of(data):
        for each in record.results.get("levels") or ():
            own = found.setdefault((each["scheme"], each["level"]), {})
            own[record.seed or 0] = each["scores"]["nll"]["value"]
    some, whole = found[f"{family}-{by}", level], found[f"{family}-full", 100]
    return _marked(spread([some[seed] - whole[seed] for seed in whole]))


def bridges_table() -> str:
    """Every choice of weights less random ones, for both posteriors, by data set."""
    across = gather(records_of("bridges"))
    columns = [(family, data) for family in _FAMILIES for data in across.data]
    headings = (f"{_FAMILIES[family]}, {data}" for family, data in columns)
    lines = [
        f"Mean test NLL over {len(across.seeds(across.data[0]))} splits, less that of "
        "random weights; below zero is better, bold where the 95 % interval leaves zero "
        "out (splits overlap, so it is too narrow if anything):",
        "",
        f"| chosen | weights | {' | '.join(headings)} |",
        "|---" * (len(columns) + 2) + "|",
    ]
    for by, label in LABELS.items():
        shares = [
            found.value
            for data in across.data
            if (found := across.mean(data, f"laplace-{by}", "fraction"))
        ]
        if by != "random" and shares:
            cells = [_less_random(across, family, by, data) for family, data in columns]
            lines.append(f"| {label} | {100 * mean(shares):.2g} % | {' | '.join(cells)} |")
    return "\n".join(lines)


def _less_random(across: Across, family: str, by: str, data: str) -> str:
    gap = across.difference(f"{family}-{by}", f"{family}-random", "nll", data)
    return "" if gap is None else _marked(gap)


def _marked(gap: Spread) -> str:
    """A difference, bold where its interval leaves zero out."""
    text = signed(gap.value)
    return f"**{text}**" if gap.above_zero or gap.below_zero else text


TABLES = {
    "bridges-short": bridges_table,
    "claim-uci": uci_table,
    "claim-temperature": temperature_claim,
    "claim-last-layer": last_layer_claim,
    "claim-schemes": schemes_claim,
    "found-glue-ramp": found_by("glue-ramp", "temperature"),
    "found-glue-table2": found_by("glue-table2", "temperature"),
    "found-uci": found_by("uci", "map"),
    "found-bridges": found_by("bridges", "map"),
}
