"""`Rules`: the decisions that go with a posterior, in one sealed file beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from smidgen.decide.abstain import AbstainRule
from smidgen.decide.intervals import IntervalRule
from smidgen.decide.rule import DecisionRule
from smidgen.decide.sets import SetRule
from smidgen.decide.strange import StrangeRule
from smidgen.errors import ArgumentError, StoreError, as_path, require_kind
from smidgen.posterior.base import Posterior
from smidgen.posterior.store import find_posterior_digest, read_posterior_digest
from smidgen.runtime.artifact import (
    read_sealed_json,
    reading,
    require_schema,
    write_sealed_json,
)
from smidgen.runtime.reading import convert_json
from smidgen.runtime.showing.html import ShownInNotebook
from smidgen.runtime.writing.rules_note import RULES_NOTE

_SCHEMA = 2
_KINDS: dict[str, type[DecisionRule]] = {
    kind.name: kind for kind in (AbstainRule, SetRule, IntervalRule, StrangeRule)
}
_ADVICE = "Make the rules again."


@dataclass(frozen=True)
class Rules(ShownInNotebook):
    """What to do with predictions: each rule, or None where there is none.

    `posterior` is the digest of the one they were made with, if that is known. What they
    promise holds for its predictions alone, so another is refused. `unpromised` says why there
    is no rule to abstain where the rows were enough for one.
    """

    abstain: AbstainRule | None = None
    sets: SetRule | None = None
    intervals: IntervalRule | None = None
    strange: StrangeRule | None = None
    # Rules that decide alike are equal.
    posterior: str | None = field(default=None, compare=False, repr=False)
    unpromised: str | None = field(default=None, compare=False, repr=False)

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
        named = {name: getattr(self, name) for name in _KINDS}
        return {name: rule for name, rule in named.items() if rule is not None}

    def for_posterior(self, posterior: Posterior) -> Rules:
        """Note the posterior that these rules go with, or check that it is that one.

        Args:
            posterior: The posterior whose predictions they decide on.

        Returns:
            The rules, with its digest.

        Raises:
            ArgumentError: If they were made with another, also if only its temperature is.
        """
        if not self.by_name():
            return self
        digest = find_posterior_digest(posterior)
        if self.posterior not in (None, digest):
            raise ArgumentError(
                "rules must be those of this posterior, got some of another: "
                f"{self._differ(digest)}. What they promise holds for that one alone. Make "
                "them again with smidgen.make_rules, after the last change of the posterior."
            )
        return replace(self, posterior=digest)

    def _differ(self, digest: str) -> str:
        made = "unknown" if self.posterior is None else f"{self.posterior[:12]}…"
        return f"its digest is {made}, this posterior's {digest[:12]}…"

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

        Raises:
            StoreError: If there is a posterior that they were not made with.
        """
        path = as_path("folder", folder) / RULES_NOTE
        there = read_posterior_digest(path.parent)
        if there is not None and self.posterior not in (None, there):
            raise StoreError(
                f"{path.parent} must hold the posterior that the rules were made with, got "
                f"another: {self._differ(there)}. Save that one, or make the rules again."
            )
        header: dict[str, Any] = {
            "schema": _SCHEMA,
            "posterior_digest": self.posterior or there,
            "rules": self.to_json(),
        }
        if self.unpromised is not None:
            header["unpromised"] = self.unpromised
        return write_sealed_json(path, header)

    @classmethod
    def load(cls, folder: str | Path) -> Rules:
        """Read what `save` wrote.

        Args:
            folder: The folder that holds `rules.json`.

        Returns:
            The rules.

        Raises:
            StoreError: If they are missing, damaged, of another version, or beside another
                posterior than they were made with.
        """  # noqa: DOC502
        path = as_path("folder", folder) / RULES_NOTE
        header = read_sealed_json(path, what="file of rules", advice=_ADVICE)
        require_schema(path, header.get("schema"), _SCHEMA, "rules")
        with reading(path, "file of rules", _ADVICE):
            named = {"schema", "posterior_digest", "rules"}
            if header.keys() - {"unpromised"} != named or not isinstance(
                header["rules"], dict
            ):
                raise StoreError(
                    "it must hold 'schema', 'posterior_digest' and 'rules' and nothing else"
                )
            made_with = convert_json(
                header["posterior_digest"], str | None, "posterior_digest"
            )
            told = convert_json(header.get("unpromised"), str | None, "unpromised")
            rules = cls.from_json(header["rules"])
            rules = replace(rules, posterior=made_with, unpromised=told)
            there = read_posterior_digest(path.parent)
            if there not in (None, made_with) and rules.by_name():
                raise StoreError(
                    "they were made with another posterior than the one beside them: "
                    f"{rules._differ(there)}"
                )
        return rules
