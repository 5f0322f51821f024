"""What the records say of decisions: the generated parts of docs/findings.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from docs.build.committed import note_missing, read_records
from docs.build.measured import find_clear, make_rows

from smidgen.decide.uncertainty import SCORE_WORDS
from smidgen.report.formats import format_signed
from smidgen.report.many_records.aggregate import SeedMean, average_seeds
from smidgen.report.names import label_method
from smidgen.runtime.record import BASELINES, Record

_POINT, _SCALED = BASELINES
_PLAIN = (_POINT, "entropy")
_DISTANCES = ((_POINT, "distance"), (_POINT, "class_distance"))
_MARKED = (
    "with 95 % intervals over seeds (which share their test rows), bold where a difference is "
    "clear after correction for all in this table (Holm)"
)
_Key = TypeVar("_Key")
Scored = tuple[str, str]
"""A method and one of its scores of uncertainty."""


@cache
def _by_data() -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in read_records("decisions"):
        if "decisions" in record.results:
            found.setdefault(record.config["data"]["name"], []).append(record)
    return found


def automation_table() -> str:
    """How many answers may be automated, and how well errors are ranked."""
    if not _by_data():
        return note_missing("decisions")
    return "\n\n".join(_describe_answers(*item) for item in _by_data().items())


def detection_table() -> str:
    """How well each score tells foreign data, and what stands first."""
    if not _by_data():
        return note_missing("decisions")
    return "\n\n".join(
        _describe_detection(data, outside, records)
        for data, records in _by_data().items()
        for outside in _rows(records[0])[_POINT]["score_detection"]
    )


def labels_table() -> str:
    """Accuracy over the number of labels, for each way of choosing them."""
    by_way: dict[str, dict[int, Record]] = {}
    for record in read_records("labels"):
        way = record.results["methods"][0]["name"]
        by_way.setdefault(way, {})[record.seed] = record
    if "acquire-random" not in by_way:
        return note_missing("labels")
    random = by_way["acquire-random"]
    counts = [row["labels"] for row in next(iter(random.values())).results["curve"]][::2]
    ways = [way for way in by_way if way != "acquire-random"]
    gaps = _write_gaps(
        {
            way: average_seeds(
                [
                    record.results["mean_accuracy"] - random[seed].results["mean_accuracy"]
                    for seed, record in by_way[way].items()
                    if seed in random
                ]
            )
            for way in ways
        }
    )
    rows = []
    for way, records in by_way.items():
        curves = [
            {row["labels"]: row["accuracy"] for row in record.results["curve"]}
            for record in records.values()
        ]
        cells = [
            f"{100 * average_seeds([c[n] for c in curves]).value:.1f} %" for n in counts
        ]
        rows.append([label_method(way), *cells, gaps.get(way, "")])
    headings = ("", *(f"{count} labels" for count in counts), "mean − random")
    return "\n".join(
        [
            f"Fashion-MNIST, test accuracy, means over {len(random)} draws of the pool; the last "
            f"column is the mean over all rounds less that of random rows, {_MARKED}:",
            "",
            *make_rows(headings, rows),
        ]
    )


def _rows(record: Record) -> dict[str, Any]:
    return {row["name"]: row for row in record.results["methods"]}


def _describe_answers(data: str, records: Sequence[Record]) -> str:
    """Automation, the area under the risk–coverage curve and AUROC of errors, by method."""

    def over_seeds(read: Callable[[Record], float]) -> SeedMean:
        return average_seeds([read(record) for record in records])

    errors = [part["max_error"] for part in _rows(records[0])[_POINT]["automation"]]
    scores = ("automation", "risk_coverage")
    gaps = _write_gaps(
        {
            (name, score): over_seeds(lambda r, n=name, s=score: _read_gap(r, n, s))
            for name in _rows(records[0])
            if name not in BASELINES
            for score in scores
        }
    )
    rows = []
    for name in _rows(records[0]):
        shares = [
            over_seeds(lambda r, n=name, p=p: _rows(r)[n]["automation"][p]["value"])
            for p in range(len(errors))
        ]
        cells = [f"{100 * share.value:.1f} %" for share in shares]
        own = (gaps.get((name, score), "") for score in scores)
        rows.append([label_method(name), *cells, *own])
    headings = (
        "",
        *(f"automated at {100 * error:g} % error" for error in errors),
        f"at {100 * errors[0]:g} %, − temperature",
        "risk–coverage area − temperature",
    )
    return "\n".join(
        [
            f"{data}, means over {len(records)} seeds; a larger share and a smaller area are "
            f"better; differences {_MARKED}:",
            "",
            *make_rows(headings, rows),
        ]
    )


def _read_gap(record: Record, method: str, score: str) -> float:
    (gap,) = (
        gap["value"]
        for gap in record.results["differences"]
        if (gap["method"], gap["baseline"], gap["score"]) == (method, _SCALED, score)
    )
    return float(gap)


def _describe_detection(data: str, outside: str, records: Sequence[Record]) -> str:
    """AUROC of telling foreign data, by method and score, and a verdict on the first."""
    values = {
        (name, score): [
            _rows(record)[name]["score_detection"][outside][score]["value"]
            for record in records
        ]
        for name, row in _rows(records[0]).items()
        for score in row["score_detection"][outside]
    }
    # Of two classes both order rows alike.
    values = {
        (name, score): own
        for (name, score), own in values.items()
        if score != "confidence" or own != values[name, "entropy"]
    }
    plain = values[_PLAIN]
    gaps = _write_gaps(
        {key: _compare(own, plain) for key, own in values.items() if key != _PLAIN}
    )
    rows = [
        [
            label_method(name),
            SCORE_WORDS[score],
            f"{average_seeds(own).value:.3f}",
            gaps.get((name, score), ""),
        ]
        for (name, score), own in sorted(
            values.items(), key=lambda item: -average_seeds(item[1]).value
        )
    ]
    return "\n".join(
        [
            f"{data} or {outside}? AUROC, means over {len(records)} seeds, the highest first; "
            f"less the MAP's entropy, {_MARKED}. {_name_first(values)}",
            "",
            *make_rows(("", "score", "AUROC", "− MAP's entropy"), rows),
        ]
    )


def _name_first(values: Mapping[Scored, Sequence[float]]) -> str:
    """Say which score of predictions is first, and how it stands to distances of features."""
    ours = {key: own for key, own in values.items() if key not in _DISTANCES}
    first = max(ours, key=lambda key: average_seeds(ours[key]).value)
    rival = max(_DISTANCES, key=lambda key: average_seeds(values[key]).value)
    gap = _compare(ours[first], values[rival])
    side = "cannot be told apart from"
    if gap.above_zero or gap.below_zero:
        side = "is clearly above" if gap.above_zero else "is clearly below"
    return (
        f"Among scores of predictions {SCORE_WORDS[first[1]]} of “{label_method(first[0])}” is "
        f"first, by these very means; it {side} the better Mahalanobis distance of the "
        f"features, the {SCORE_WORDS[rival[1]]} ({_write_gap(gap)})."
    )


def _compare(first: Iterable[float], second: Iterable[float]) -> SeedMean:
    return average_seeds([a - b for a, b in zip(first, second, strict=True)])


def _write_gaps(gaps: Mapping[_Key, SeedMean]) -> dict[_Key, str]:
    """Write the differences of a table, bold where Holm's rule finds them clear."""
    clear = find_clear(gaps)
    return {
        key: f"**{_write_gap(gap)}**" if key in clear else _write_gap(gap)
        for key, gap in gaps.items()
    }


def _write_gap(gap: SeedMean) -> str:
    text = format_signed(gap.value, 4)
    if gap.low is not None and gap.high is not None:
        text += f" ({format_signed(gap.low, 4)} to {format_signed(gap.high, 4)})"
    return text


TABLES = {
    "decisions-automation": automation_table,
    "decisions-detection": detection_table,
    "decisions-labels": labels_table,
}
