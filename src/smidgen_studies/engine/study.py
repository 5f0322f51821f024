"""Studies as files: TOML that lists the cells.

title = "..."
test_to_train = 0.1  where seeds split the same rows: test rows to a training row
baseline = "map"     the method that the page compares others with
pairwise = "..."     a method whose task scores are compared with every other method's
[[data]]             each data set: a name, and what its kind of cells reads
[[cells]]            name, kind, needs; `each` makes a cell of each value; `only` for
                     some data; `seed` one for all seeds; the rest are settings of the kind
[profiles.small]     seeds, and under data.NAME and cells.NAME what differs
[paper]              published figures, shown beside ours
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

from smidgen.errors import ArgumentError, did_you_mean
from smidgen.integrations.devices import AUTO
from smidgen_studies.engine.cell import Cell
from smidgen_studies.engine.settings import (
    Count,
    Natural,
    Positive,
    describe_type,
    fits,
    read_settings,
)

_SHIPPED = resources.files("smidgen_studies") / "shipped"
_ADVICE = " Run 'smidgen study list' to see them."
_REQUIRED = ("title", "about", "data", "cells", "profiles")
_OPTIONAL = ("resources", "baseline", "pairwise", "test_to_train", "paper")
_PROFILE = ("about", "seeds", "data", "cells")
_RESERVED = ("name", "kind", "needs", "each", "only", "seed")


@dataclass(frozen=True)
class Resources:
    """What one worker needs: threads, bytes of memory, and the device of its models.

    `device` is "auto", a CUDA device if the worker has one, or what `torch.device` takes.
    """

    threads: Count = 1
    memory: Positive = 2e9
    device: str = AUTO


@dataclass(frozen=True)
class Study:
    """All cells of a study, those that others need first.

    `about` describes the study, `size` the profile. `baseline` is the method that the page
    compares others with, `pairwise` one that is compared with every other on the same test
    rows; either may be left out. `test_to_train` is set where seeds are splits of the same
    rows: test rows to a training row. `paper` holds published figures: a label, and values
    by method, data and score.
    """

    name: str
    profile: str
    title: str
    about: str
    size: str
    cells: tuple[Cell, ...]
    baseline: str | None = None
    pairwise: str | None = None
    test_to_train: float = 0.0
    resources: Resources = Resources()
    paper: Mapping[str, Any] = field(default_factory=dict)


def shipped_studies() -> list[str]:
    """List the names of the studies that come with smidgen."""
    paths = (Path(entry.name) for entry in _SHIPPED.iterdir())
    return sorted(path.stem for path in paths if path.suffix == ".toml")


def study_text(name_or_file: str) -> str:
    """Read the file of a study as it stands."""
    known = shipped_studies()
    if name_or_file in known:
        return (_SHIPPED / f"{name_or_file}.toml").read_text("utf-8")
    path = Path(name_or_file)
    if path.is_file():
        return path.read_text("utf-8")
    absent = "" if path.name == path.stem == name_or_file else ", a file that is not there"
    raise ArgumentError(
        f"NAME must be one of {', '.join(known)}, or a TOML file, got "
        f"{name_or_file!r}{absent}.{did_you_mean(path.stem, known) or _ADVICE}"
    )


def list_profiles(name_or_file: str) -> dict[str, str]:
    """List a study's profiles and what each of them is for."""
    profiles = _read(name_or_file)[1].get("profiles", {})
    return {name: str(profile.get("about", "")) for name, profile in profiles.items()}


def read_study(name_or_file: str, profile: str | None = None) -> Study:
    """Read a study with all its cells, by its name or from a TOML file."""
    name, table = _read(name_or_file)
    _refuse_unknown(table, (*_REQUIRED, *_OPTIONAL), f"study {name!r}")
    profile, changes = _choose_profile(name, table.get("profiles", {}), profile)
    ratio = float(table.get("test_to_train", 0.0))
    return Study(
        name=name,
        profile=profile,
        title=str(table.get("title", name)),
        about=str(table.get("about", "")).strip(),
        size=str(changes.get("about", "")).strip(),
        cells=_all_cells(name, table, changes, ratio),
        baseline=table.get("baseline"),
        pairwise=table.get("pairwise"),
        test_to_train=ratio,
        resources=read_settings(Resources, table.get("resources", {}), "[resources]"),
        paper=table.get("paper", {}),
    )


def _read(name_or_file: str) -> tuple[str, dict[str, Any]]:
    text, path = study_text(name_or_file), Path(name_or_file)
    try:
        return path.stem if path.is_file() else name_or_file, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ArgumentError(
            f"{path} must be TOML, got something else: {error}. Start from one that "
            "'smidgen study show NAME' prints."
        ) from error


def _choose_profile(
    study: str, profiles: Mapping[str, Any], name: str | None
) -> tuple[str, Mapping[str, Any]]:
    """The name of a profile, the first by default, and what it changes."""
    if not profiles:
        raise ArgumentError(
            f"study {study!r} must have a [profiles.NAME] with its seeds, got none."
        )
    chosen = name or next(iter(profiles))
    if chosen not in profiles:
        raise ArgumentError(
            f"--profile must be one of {', '.join(profiles)} for {study!r}, got {chosen!r}."
        )
    _refuse_unknown(profiles[chosen], _PROFILE, f"profile {chosen!r} of {study!r}")
    return chosen, profiles[chosen]


def _all_cells(
    study: str, table: Mapping[str, Any], changes: Mapping[str, Any], ratio: float
) -> tuple[Cell, ...]:
    """The cells of every seed and data set, each of them once."""
    data = _changed(table.get("data", ()), changes.get("data", {}), "data", study)
    templates = _changed(table.get("cells", ()), changes.get("cells", {}), "cells", study)
    seeds = _seeds(changes.get("seeds", []), templates, study)
    if not data or not templates or not seeds:
        raise ArgumentError(
            f"study {study!r} must have [[data]], [[cells]] and seeds, got {len(data)}, "
            f"{len(templates)} and {len(seeds)}."
        )
    cells = [
        # Seed by seed: a study that is stopped early has whole seeds.
        cell
        for seed, description in product(seeds, data)
        for cell in _cells(templates, description, seed, ratio)
    ]
    return tuple({cell.key: cell for cell in cells}.values())


def _refuse_unknown(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    unknown = [name for name in table if name not in known]
    if unknown:
        raise ArgumentError(
            f"{where} has an unknown part, {unknown[0]!r}. Known parts are "
            f"{', '.join(known)}."
        )


def _changed(
    entries: Sequence[Mapping[str, Any]],
    changes: Mapping[str, Mapping[str, Any]],
    part: str,
    study: str,
) -> list[dict[str, Any]]:
    """The entries of a part, as a profile changes them."""
    names = [str(entry.get("name", "")) for entry in entries]
    if len(set(names)) < len(names) or "" in names:
        raise ArgumentError(
            f"[[{part}]] of {study!r} must each have a name of its own, got {names}."
        )
    absent = [name for name in changes if name not in names]
    if absent:
        raise ArgumentError(
            f"a profile of {study!r} changes {part} {absent[0]!r}, which is not there. "
            f"There are {', '.join(names)}."
        )
    return [{**entry, **changes.get(str(entry["name"]), {})} for entry in entries]


def _seeds(seeds: Any, templates: Sequence[Mapping[str, Any]], study: str) -> Sequence[int]:
    """The seeds of a profile; refuses what is no seed there or in single cells."""
    single = [template["seed"] for template in templates if "seed" in template]
    if not isinstance(seeds, list) or not all(fits(n, Natural) for n in seeds + single):
        raise ArgumentError(
            f"seeds of {study!r} must be {describe_type(tuple[Natural, ...])}, got {seeds!r}"
            f"{f' and seed = {single}' if single else ''}."
        )
    return seeds


def _cells(
    templates: Sequence[Mapping[str, Any]],
    data: Mapping[str, Any],
    seed: int,
    test_to_train: float,
) -> Iterator[Cell]:
    """The cells of one data set and seed; those that a cell needs come before it."""
    made: dict[str, list[Cell]] = {}
    for template in templates:
        name = str(template["name"])
        if data["name"] not in template.get("only", [data["name"]]):
            continue
        needs = tuple(template.get("needs", ()))
        absent = [need for need in needs if need not in made]
        if absent or "kind" not in template:
            raise ArgumentError(
                f"cells {name!r} must have a kind, and need only cells that stand above "
                f"them, got needs {list(needs)}."
            )
        axes = template.get("each", {})
        for axis, values in axes.items():
            if not isinstance(values, list) or not values:
                raise ArgumentError(
                    f"each of cells {name!r} must have a list of values for {axis!r}, got "
                    f"{values!r}. Write them in brackets."
                )
        common = {k: v for k, v in template.items() if k not in _RESERVED}
        made[name] = [
            Cell(
                name="-".join([name, *map(str, values)]),
                kind=str(template["kind"]),
                data=data,
                seed=int(template.get("seed", seed)),
                settings={**common, **dict(zip(axes, values, strict=True))},
                needs=tuple(cell for need in needs for cell in made[need]),
                test_to_train=test_to_train,
            )
            for values in product(*axes.values())
        ]
        yield from made[name]
