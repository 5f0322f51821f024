"""How cells are done, noted in their records: pages and `status` mark what is of an earlier way.

Raised when the same cell would be measured otherwise, though its settings are the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from smidgen.runtime.record import Record

PROTOCOL = 2
"""The protocol of the cells that are done now."""
_CHANGES = {
    2: "keeps the loss of every test row, so that intervals hold what other rows would change"
}


def describe_stale(records: Iterable[Record]) -> str | None:
    """Say how many records are of an earlier protocol, and what the present one does.

    Args:
        records: Records of cells.

    Returns:
        A sentence, or None if all are of the present one.
    """
    protocols = [int(record.config.get("protocol", 1)) for record in records]
    old = [protocol for protocol in protocols if protocol < PROTOCOL]
    if not old:
        return None
    changes = "; ".join(words for number, words in _CHANGES.items() if number > min(old))
    return (
        f"{len(old)} of {len(protocols)} records are of an earlier protocol. The present one "
        f"{changes}. Run the study into a new folder to make them again."
    )
