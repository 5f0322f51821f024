"""`Rules`: the decisions that go with a posterior, in one sealed file beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from smidgen.decide.abstain import AbstainRule
from smidgen.decide.intervals import IntervalRule
from smidgen.decide.rule import DecisionRule
from smidgen.decide.sets import SetRule
from smidgen.decide.strange import StrangeRule
from smidgen.errors import StoreError, as_path, require_kind
from smidgen.runtime.artifact import (
    read_sealed_json,
    reading,
    require_schema,
    write_sealed_json,
)
from smidgen.runtime.showing.html import ShownInNotebook
from smidgen.runtime.writing.rules_note import RULES_NOTE

_SCHEMA = 1
_KINDS: dict[str, type[DecisionRule]] = {
    kind.name: kind for kind in (AbstainRule, SetRule, IntervalRule, StrangeRule)
}
_ADVICE = "Make the rules again."


@dataclass(frozen=True)
class Rules(ShownInNotebook):
    """What to do with predictions: each rule, or None where there is none."""

    abstain: AbstainRule | None = None
    sets: SetRule | None = None
    intervals: IntervalRule | None = None
    strange: StrangeRule | None = None

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            if getattr(self, name) is not None:
                advice = f"Make it with smidgen.decide.{name}"
                require_kind(name, getattr(self, name), kind, advice)

    def __str__(self) -> str:
        made = [str(rule) for rule in self.by_name().values()]
        return "\n".join(made) if made else "No rules."

    def by_name(self) -> dict[str, DecisionRule]:
        """List the rules that there are, by name."""
        named = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {name: rule for name, rule in named.items() if rule is not None}

    def to_json(self) -> dict[str, Any]:
        """List the rules that there are, ready for JSON."""
        return {name: rule.to_json() for name, rule in self.by_name().items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Rules:
        """Make the rules of what `to_json` listed.

        Args:
            values: The fields of each rule, by name.

        Returns:
            The rules.

        Raises:
            StoreError: If a rule is unknown, or a field is missing, unknown or of another type.
        """
        for name in values:
            if name not in _KINDS:
                raise StoreError(f"the rule {name[:80]!r} is unknown")
        made: dict[str, Any] = {
            name: _KINDS[name].from_json(rule) for name, rule in values.items()
        }
        return cls(**made)

    def save(self, folder: str | Path) -> Path:
        """Write the rules to `rules.json` in a folder, as that of their posterior.

        Args:
            folder: Made if it is missing. Rules that are there are replaced.

        Returns:
            The file.
        """
        path = as_path("folder", folder) / RULES_NOTE
        return write_sealed_json(path, {"schema": _SCHEMA, "rules": self.to_json()})

    @classmethod
    def load(cls, folder: str | Path) -> Rules:
        """Read what `save` wrote.

        Args:
            folder: The folder that holds `rules.json`.

        Returns:
            The rules.

        Raises:
            StoreError: If they are missing, damaged, or of another version.
        """  # noqa: DOC502
        path = as_path("folder", folder) / RULES_NOTE
        header = read_sealed_json(path, what="file of rules", advice=_ADVICE)
        require_schema(path, header.get("schema"), _SCHEMA, "rules")
        with reading(path, "file of rules", _ADVICE):
            if header.keys() != {"schema", "rules"} or not isinstance(
                header["rules"], dict
            ):
                raise StoreError("it must hold 'schema' and 'rules' and nothing else")
            return cls.from_json(header["rules"])
