"""The card of a ready folder: what it is, how good, by which rules, and what nobody tested.

A `README.md` for people, with a YAML head that the Hugging Face Hub reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from smidgen import report
from smidgen.decide import Rules
from smidgen.integrations.reading.task_note import TaskNote
from smidgen.integrations.sharing.hub import HUB_NAME
from smidgen.report.fields import find_primary, list_shown, read_label
from smidgen.runtime.artifact import dump_json
from smidgen.runtime.record import Record

_PIPELINES = {
    ("text", True): "text-classification",
    ("text", False): "text-classification",
    ("table", True): "tabular-classification",
    ("table", False): "tabular-regression",
    ("images", True): "image-classification",
}
_METRICS = {
    "accuracy": "Accuracy",
    "nll": "Negative log likelihood",
    "brier": "Brier score",
    "ece_equal_mass": "Expected calibration error",
    "rmse": "Root mean squared error",
    "coverage": "Coverage of plain 95 % intervals",
}
_PACKAGES = ("smidgen", "torch", "transformers", "peft")


def write_card(
    name: str,
    note: TaskNote,
    rules: Rules,
    record: Record | None,
    *,
    revision: str | None = None,
) -> str:
    """Write the card of a ready folder.

    Args:
        name: What is loaded: the folder, or the repository on the Hub.
        note: What training saw.
        rules: The rules of the posterior.
        record: What was measured on test rows, if it was.
        revision: The version of the base, where the folder names one.

    Returns:
        Markdown, with a YAML head.
    """
    head = _make_head(name, note, record)
    # JSON is YAML, and quotes whatever a name may hold.
    lines = ["---", *(f"{key}: {dump_json(head[key])}" for key in head), "---", ""]
    lines += [f"# {Path(name).name}", "", _say_what(note), ""]
    if note.base is not None:
        at = "" if revision is None else f" at `{revision}`"
        # A folder of this machine says nothing to others, and may say too much.
        shown = note.base if HUB_NAME.fullmatch(note.base) else Path(note.base).name
        lines += [f"Made of `{shown}`{at}.", ""]
    lines += [*_say_how(name, note), "", *_say_results(note, record)]
    lines += ["## Rules", "", *(f"- {rule}" for rule in rules.by_name().values())]
    if not rules.by_name():
        lines += [
            "None were made: every row gets an answer, and nothing is promised of it."
        ]
    lines += [
        "",
        *_say_limits(note, rules, record),
        "## Versions",
        "",
        _say_versions(record),
    ]
    return "\n".join(lines) + "\n"


def _make_head(name: str, note: TaskNote, record: Record | None) -> dict[str, Any]:
    head: dict[str, Any] = {"library_name": "smidgen"}
    head["pipeline_tag"] = _PIPELINES[
        note.kind, note.classes is not None or note.kind == "images"
    ]
    head["tags"] = ["smidgen", "uncertainty", "calibration", "bayesian"]
    if note.base is not None and HUB_NAME.fullmatch(note.base):
        head["base_model"] = note.base
    metrics = [] if record is None else list(_list_metrics(record))
    if metrics:
        assert record is not None
        data = Path(
            str(record.config.get("data") or record.config.get("test") or "test rows")
        )
        head["model-index"] = [
            {
                "name": Path(name).name,
                "results": [
                    {
                        "task": {"type": head["pipeline_tag"]},
                        "dataset": {"name": data.name, "type": data.stem or "rows"},
                        "metrics": metrics,
                    }
                ],
            }
        ]
    return head


def _list_metrics(record: Record) -> Iterator[Mapping[str, Any]]:
    """List what the kept posterior was scored by, with 95 % intervals."""
    method = find_primary(record)
    for name, score in ((method or {}).get("scores") or {}).items():
        if name in _METRICS:
            metric = {"type": name, "name": _METRICS[name], "value": score["value"]}
            ends = {end: score[end] for end in ("low", "high") if end in score}
            yield {**metric, "args": {"interval": 0.95, **ends}} if ends else metric


def _say_what(note: TaskNote) -> str:
    if note.classes is None:
        what = f"the number `{note.label or 'answer'}`"
    else:
        more = ", …" if len(note.classes) > 20 else ""
        what = f"{len(note.classes)} classes: {', '.join(note.classes[:20])}{more}"
    read = {
        "text": f"texts in {', '.join(note.columns)}"
        + (f" and {note.text_pair}" if note.text_pair else ""),
        "table": f"the columns {', '.join(note.columns)}",
        "images": f"images of shape {note.shape}",
    }[note.kind]
    return (
        f"A predictor that says how sure it is, made with smidgen. Reads {read}; predicts "
        f"{what}."
    )


def _say_how(name: str, note: TaskNote) -> list[str]:
    rows = {
        "text": [{name: "…" for name in (*note.columns, note.text_pair) if name}],
        "table": [dict.fromkeys(note.columns[:3], "…")],
        "images": ["image.png"],
    }[note.kind]
    shown = dump_json(rows, ensure_ascii=False)
    if note.kind == "table" and len(note.columns) > 3:
        shown = shown.replace("}]", ", …}]")
    return [
        "```python",
        "import smidgen",
        "",
        f"answers = smidgen.load({dump_json(name)})({shown})",
        "```",
        "",
        "```bash",
        f"smidgen predict {name} --data NEW --out answers.csv",
        f"smidgen evaluate {name} --test LABELLED",
        "```",
    ]


def _say_results(note: TaskNote, record: Record | None) -> list[str]:
    heading = ["## What was found on test rows that chose nothing", ""]
    if record is None:
        return [*heading, "Nothing was measured. `smidgen evaluate` does.", ""]
    methods = [method for method in list_shown(record) if method.get("scores")]
    scores = [name for name in _METRICS if any(name in m["scores"] for m in methods)]
    table = [
        f"| | {' | '.join(_METRICS[name] for name in scores)} |",
        "|---" * (len(scores) + 1) + "|",
        *(
            f"| {read_label(method)} | "
            f"{' | '.join(_show_score(method['scores'].get(name)) for name in scores)} |"
            for method in methods
        ),
    ]
    rows = (record.results.get("data") or {}).get("test")
    counted = f"{rows:,} rows; in" if rows else "In"
    verdict = report.verdict(record)[:1]
    lines = [*heading, *verdict, "", *table, "", f"{counted} brackets 95 % intervals.", ""]
    if note.unit is not None:
        lines += [
            f"Numbers above are of `{note.unit}`; answers are of the label itself.",
            "",
        ]
    return lines


def _show_score(score: Mapping[str, float] | None) -> str:
    if score is None:
        return ""
    shown = f"{score['value']:.4f}"
    if {"low", "high"} <= score.keys():
        shown += f" ({score['low']:.4f} to {score['high']:.4f})"
    return shown


def _say_limits(note: TaskNote, rules: Rules, record: Record | None) -> list[str]:
    lines = ["## Limits", ""]
    if rules.by_name():
        lines += [
            "- Rules hold for rows that are *exchangeable* with those that made them: drawn "
            "alike, in any order. They hold on average over such rows, not for each group of "
            "them, and not after the world has changed. Make them anew from recent labelled "
            "rows when it has."
        ]
    if rules.strange is not None:
        lines += [
            "- A row that is not called strange may still be unlike those of training: the flag "
            "says what it was seen to say, and was made without any strange row."
        ]
    if record is not None and not record.results.get("shifted"):
        lines += [
            "- Not tested: rows from another source, place or time than the test rows."
        ]
    if note.kind == "text":
        lines += [
            f"- Texts longer than {note.max_length} tokens are cut. Other languages than that "
            "of the training rows were not tested."
        ]
    lines += ["- Fairness between groups of people was not tested.", ""]
    return lines


def _say_versions(record: Record | None) -> str:
    versions = dict(record.versions) if record is not None else {}
    if not versions:
        for name in _PACKAGES:
            try:
                versions[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
    shown = [f"{name} {versions[name]}" for name in _PACKAGES if name in versions]
    return f"Made with {', '.join(shown)}."
