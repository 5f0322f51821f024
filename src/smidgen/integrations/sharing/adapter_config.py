"""The config of a PEFT adapter, read before PEFT sees it: it may name no more than itself.

PEFT opens whatever a config asks for: a second model on the Hub, a pickle of any path, a Python
module. Only kinds that read nothing but their own weights are let through, and of these no
field that names a file, a host or a module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from smidgen.errors import StoreError
from smidgen.integrations.model_folder import check_model_file
from smidgen.runtime.artifact import reading
from smidgen.runtime.reading import parse_object, read_whole
from smidgen.weights.adapters import CALLS_BASE

_BASE = "base_model_name_or_path"
_NAMES_OTHERS = re.compile(
    r"(^|_)(path|file|folder|dir|url|host|repo|model|models|core|adapter|adapters|tokenizer"
    r"|megatron_config)$|^tokenizer_"
)
# What PEFT writes of itself, and never opens unless another field asks for it.
_HARMLESS = {"megatron_core": "megatron.core"}


def check_adapter_config(path: Path, *, base: str | None, advice: str) -> None:
    """Refuse an adapter of a kind that is not known, or one that names anything else to open.

    Args:
        path: Its `adapter_config.json`.
        base: The name of the base that it must have, if any; None if it is not looked at.
        advice: What to do about it.

    Raises:
        StoreError: If the config is damaged, or asks for more than its own weights.
    """  # noqa: DOC502
    check_model_file(path)
    with reading(path, "config of an adapter", advice):
        config = parse_object(read_whole(path), finite=False)
        kind = config.get("peft_type")
        if not isinstance(kind, str) or kind.lower() not in CALLS_BASE:
            known = ", ".join(name.upper() for name in CALLS_BASE)
            raise StoreError(
                f"its peft_type must be one of {known}, got {str(kind)[:40]!r}, which may "
                "open other files. Merge such an adapter into its model, and save that whole"
            )
        named = config.pop(_BASE, None)
        if base is not None and named not in (None, base):
            raise StoreError(f"its {_BASE} must be {base!r}, got {str(named)[:80]!r}")
        for field, value in _list_fields(config):
            asks = value not in (None, "", False) and value != _HARMLESS.get(field)
            if asks and _NAMES_OTHERS.search(field):
                raise StoreError(
                    f"its {field} must be empty, got {str(value)[:80]!r}: an adapter may name "
                    "nothing else to open"
                )


def _list_fields(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """List the fields at any depth that hold something; of a list, each entry by its name."""
    for name, value in config.items():
        if isinstance(value, dict):
            if value:
                yield name, value
            yield from _list_fields(value)
        elif isinstance(value, list):
            for entry in value:
                yield from _list_fields({name: entry})
        else:
            yield name, value
