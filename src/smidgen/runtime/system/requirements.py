"""Which packages smidgen needs, as its metadata say, and which of them are installed."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata

CORE = ""
"""The name under which `read_requirements` has what every part of smidgen needs."""
_LINE = re.compile(
    r"(?P<name>[\w.-]+)\s*(\[(?P<extras>[\w, -]+)\])?(?P<versions>[^;]*)(;(?P<when>.*))?"
)
_LEAST = re.compile(r"(>=|==|~=)\s*(?P<version>\d+(\.\w+)*)")
_EXTRA = re.compile(r"extra == ['\"](?P<name>[\w-]+)['\"]")
_SYSTEM = re.compile(r"sys_platform (?P<how>[!=]=) ['\"](?P<name>\w+)['\"]")
_NUMBERS = re.compile(r"\d+(\.\d+)*")


@dataclass(frozen=True)
class Requirement:
    """A package by name, and the least version that will do."""

    name: str
    least: str = "0"

    @cached_property
    def installed(self) -> str | None:
        """The version that is installed, if any is."""
        try:
            return metadata.version(self.name)
        except metadata.PackageNotFoundError:
            return None

    @property
    def is_met(self) -> bool:
        """Whether it is installed and new enough."""
        return self.installed is not None and not self.is_outdated

    @property
    def is_outdated(self) -> bool:
        """Whether what is installed is too old."""
        found = self.installed
        return found is not None and _read_release(found) < _read_release(self.least)


def read_requirements(package: str = "smidgen") -> dict[str, tuple[Requirement, ...]]:
    """Read what a package and each of its extras need on this system.

    Args:
        package: The package's name.

    Returns:
        Requirements by extra, those of the package itself under "". An extra that only joins
        others has theirs.

    Raises:
        importlib.metadata.PackageNotFoundError: If the package is not installed.
    """  # noqa: DOC502
    found: dict[str, list[Requirement]] = {CORE: []}
    joined: dict[str, list[str]] = {}
    for line in metadata.requires(package) or ():
        parts = _LINE.fullmatch(line)
        assert parts is not None
        when = parts["when"] or ""
        if not _suits_system(when):
            continue
        extra = _EXTRA.search(when)
        name = extra["name"] if extra else CORE
        if parts["name"] == package:
            joined.setdefault(name, []).extend(re.split(r"[, ]+", parts["extras"] or ""))
        else:
            least = _LEAST.search(parts["versions"])
            each = Requirement(parts["name"], least["version"] if least else "0")
            found.setdefault(name, []).append(each)
    extras = {*found, *joined} - {CORE}
    whole = {name: _collect(name, found, joined) for name in sorted(extras)}
    return {CORE: tuple(found[CORE]), **whole}


def _collect(
    extra: str, found: Mapping[str, list[Requirement]], joined: Mapping[str, list[str]]
) -> tuple[Requirement, ...]:
    """List what an extra needs, with the needs of the extras it joins."""
    needs = list(found.get(extra, ()))
    for other in joined.get(extra, ()):
        needs += _collect(other, found, joined)
    return tuple(dict.fromkeys(needs))


def _suits_system(when: str) -> bool:
    system = _SYSTEM.search(when)
    if system is None:
        return True
    return (sys.platform == system["name"]) == (system["how"] == "==")


def _read_release(version: str) -> tuple[int, ...]:
    """Read the numbers a version begins with, without zeros at their end."""
    numbers = _NUMBERS.match(version)
    release = [int(part) for part in numbers[0].split(".")] if numbers else []
    while release and not release[-1]:
        release.pop()
    return tuple(release)
