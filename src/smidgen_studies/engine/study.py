"""Studies as files: TOML that says which cells there are.

title = "..."
test_to_train = 0.1  where seeds split the same rows: test rows to a training row
[[data]]             each data set: a name, and what its kind of cells read
[[cells]]            name, kind, needs; `each` makes a cell of each value; `only` of
                     some data; `seed` one for all seeds; all else is the kind's
[profiles.small]     seeds, and under data.NAME and cells.NAME what is told otherwise
[paper]              published figures, to stand beside ours
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
from smidgen_studies.engine.cell import Cell, read_settings
from smidgen_studies.engine.settings import Count, Natural, Positive, fits, words

_SHIPPED = resources.files("smidgen_studies") / "shipped"
_TOP = (
    "title",
    "about",
    "data",
    "cells",
    "profiles",
    "resources",
    "baseline",
    "test_to_train",
    "paper",
)
_PROFILE = ("about", "seeds", "data", "cells")
_OWN = ("name", "kind", "needs", "each", "only", "seed")


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

    `about` is of the study, `size` of the profile. `baseline` is the method that others are
    compared with, if it names one; `test_to_train` says that seeds are splits of the same
    rows, and how many test rows there are to a training row; `paper` holds published
    figures: a label, and values by method, data and score.
    """

    name: str
    profile: str
    title: str
    about: str
    size: str
    cells: tuple[Cell, ...]
    baseline: str | None = None
    test_to_train: float = 0.0
    resources: Resources = Resources()
    paper: Mapping[str, Any] = field(default_factory=dict)


def shipped() -> list[str]:
    """List the names of the studies that come with smidgen."""
    found = (Path(each.name) for each in _SHIPPED.iterdir())
    return sorted(path.stem for path in found if path.suffix == ".toml")


def text_of(name_or_file: str) -> str:
    """Read the file of a study as it stands.

    Args:
        name_or_file: The name of one that comes with smidgen, or the path of a file.

    Returns:
        The TOML.

    Raises:
        ArgumentError: If there is no such study.
    """
    if name_or_file in shipped():
        return (_SHIPPED / f"{name_or_file}.toml").read_text("utf-8")
    path = Path(name_or_file)
    if path.is_file():
        return path.read_text("utf-8")
    strange = "" if path.name == path.stem == name_or_file else ", a file that is not there"
    raise ArgumentError(
        f"NAME must be one of {', '.join(shipped())}, or a TOML file, got "
        f"{name_or_file!r}{strange}.{did_you_mean(path.stem, shipped())}"
    )


def profiles_of(name_or_file: str) -> dict[str, str]:
    """List a study's profiles and what each is for."""
    told = _read(name_or_file)[1].get("profiles", {})
    return {name: str(profile.get("about", "")) for name, profile in told.items()}


def read_study(name_or_file: str, profile: str | None = None) -> Study:
    """Read a study: one that comes with smidgen by name, or a file.

    Args:
        name_or_file: The name, or the path of a TOML file.
        profile: Which of its profiles; the first if left out.

    Returns:
        The study with all its cells.

    Raises:
        ArgumentError: If there is no such study or profile, or the file is not one.
    """
    name, told = _read(name_or_file)
    _refuse_unknown(told, _TOP, f"study {name!r}")
    profiles = told.get("profiles", {})
    if not profiles:
        raise ArgumentError(
            f"study {name!r} must have a [profiles.NAME] with its seeds, got none."
        )
    chosen = profile or next(iter(profiles))
    if chosen not in profiles:
        raise ArgumentError(
            f"--profile must be one of {', '.join(profiles)} for {name!r}, got {chosen!r}."
        )
    changes = profiles[chosen]
    _refuse_unknown(changes, _PROFILE, f"profile {chosen!r} of {name!r}")
    data = _changed(told.get("data", ()), changes.get("data", {}), "data", name)
    templates = _changed(told.get("cells", ()), changes.get("cells", {}), "cells", name)
    seeds = _seeds(changes.get("seeds", []), templates, name)
    if not data or not templates or not seeds:
        raise ArgumentError(
            f"study {name!r} must have [[data]], [[cells]] and seeds, got {len(data)}, "
            f"{len(templates)} and {len(seeds)}."
        )
    ratio = float(told.get("test_to_train", 0.0))
    cells = [
        # Seed by seed: what is stopped early has whole seeds.
        cell
        for seed, one in product(seeds, data)
        for cell in _cells(templates, one, seed, ratio)
    ]
    return Study(
        name=name,
        profile=chosen,
        title=str(told.get("title", name)),
        about=str(told.get("about", "")).strip(),
        size=str(changes.get("about", "")).strip(),
        cells=tuple({cell.key: cell for cell in cells}.values()),
        baseline=str(told["baseline"]) if "baseline" in told else None,
        test_to_train=ratio,
        resources=read_settings(Resources, told.get("resources", {}), "[resources]"),
        paper=told.get("paper", {}),
    )


def _read(name_or_file: str) -> tuple[str, dict[str, Any]]:
    text, path = text_of(name_or_file), Path(name_or_file)
    try:
        return path.stem if path.is_file() else name_or_file, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ArgumentError(f"{path} must be TOML, got something else: {error}.") from error


def _refuse_unknown(given: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ArgumentError(
            f"{where} has a part {unknown[0]!r} that means nothing. Parts are "
            f"{', '.join(known)}."
        )


def _changed(
    entries: Sequence[Mapping[str, Any]],
    changes: Mapping[str, Mapping[str, Any]],
    part: str,
    study: str,
) -> list[dict[str, Any]]:
    """The entries of a part, as a profile changes them."""
    names = [str(each.get("name", "")) for each in entries]
    if len(set(names)) < len(names) or "" in names:
        raise ArgumentError(
            f"[[{part}]] of {study!r} must have names of their own, got {names}."
        )
    strange = [name for name in changes if name not in names]
    if strange:
        raise ArgumentError(
            f"a profile of {study!r} changes {part} {strange[0]!r}, which is not there. "
            f"There are {', '.join(names)}."
        )
    return [{**each, **changes.get(str(each["name"]), {})} for each in entries]


def _seeds(told: Any, templates: Sequence[Mapping[str, Any]], study: str) -> Sequence[int]:
    """The seeds of a profile, if they and those of single cells are seeds."""
    own = [each["seed"] for each in templates if "seed" in each]
    if not isinstance(told, list) or not all(fits(each, Natural) for each in told + own):
        raise ArgumentError(
            f"seeds of {study!r} must be a list, each of it {words(Natural)}, got {told!r}"
            f"{f' and seed = {own}' if own else ''}."
        )
    return told


def _cells(
    templates: Sequence[Mapping[str, Any]],
    data: Mapping[str, Any],
    seed: int,
    test_to_train: float,
) -> Iterator[Cell]:
    """The cells of one data set and seed; those a template needs come before it."""
    made: dict[str, list[Cell]] = {}
    for template in templates:
        name = str(template["name"])
        if data["name"] not in template.get("only", [data["name"]]):
            continue
        needs = tuple(template.get("needs", ()))
        absent = [each for each in needs if each not in made]
        if absent or "kind" not in template:
            raise ArgumentError(
                f"cells {name!r} must have a kind, and need only cells that stand above, "
                f"got needs {list(needs)}."
            )
        axes = template.get("each", {})
        for axis, values in axes.items():
            if not isinstance(values, list) or not values:
                raise ArgumentError(
                    f"each of cells {name!r} must have a list of values for {axis!r}, got "
                    f"{values!r}. Put them in brackets."
                )
        common = {k: v for k, v in template.items() if k not in _OWN}
        made[name] = [
            Cell(
                name="-".join([name, *map(str, values)]),
                kind=str(template["kind"]),
                data=data,
                seed=int(template.get("seed", seed)),
                settings={**common, **dict(zip(axes, values, strict=True))},
                needs=tuple(cell for each in needs for cell in made[each]),
                test_to_train=test_to_train,
            )
            for values in product(*axes.values())
        ]
        yield from made[name]
