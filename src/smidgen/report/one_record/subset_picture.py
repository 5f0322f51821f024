"""The subset, drawn: every layer a small panel, all to one scale, its choice visible.

Panels are single SVGs that the page lays out like words, so they fit any screen. Lines
are paths of a few bytes; the crossings are the columns seen through a mask of the rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from statistics import median_low
from typing import Any

_LARGEST = 240.0
_USUAL = 88.0
_LONGEST = 4.5  # times the usual side; longer ones are drawn shorter than to scale
_BUDGET = 250_000  # bytes; layers beyond are left out and counted
_NEIGHBOURS = 3
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


@dataclass(frozen=True)
class Panel:
    """One layer: its number in the stack, its size in weights as drawn, its picture."""

    label: str
    width: float
    height: float
    svg: str


@dataclass(frozen=True)
class PanelGroup:
    """Layers of one kind and shape, such as the queries of all blocks."""

    heading: str
    shape: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class SubsetPicture:
    """Every panel, with the pixels per weight and how many layers were left out."""

    groups: tuple[PanelGroup, ...]
    scale: float
    hidden: int


def subset_picture(layers: Sequence[Mapping[str, Any]]) -> SubsetPicture:
    """Draw which rows and columns of which layer are chosen."""
    if not layers:
        return SubsetPicture((), 1.0, 0)
    sides = [max(entry["outputs"], entry["inputs"]) for entry in layers]
    usual = median_low(sides)
    limit = min(max(sides), _LONGEST * usual)
    drawn: list[tuple[tuple[str, int, int], Mapping[str, Any], Panel]] = []
    spent = 0
    for i, entry in enumerate(layers):
        panel = _panel(entry, limit, f"map-{i}")
        spent += len(panel.svg)
        if spent > _BUDGET:
            break
        kind = _NUMBER.sub("*", entry["name"])
        drawn.append(((kind, entry["outputs"], entry["inputs"]), entry, panel))
    return SubsetPicture(
        _groups(drawn), min(_LARGEST / limit, _USUAL / usual), len(layers) - len(drawn)
    )


def _groups(
    drawn: Sequence[tuple[tuple[str, int, int], Mapping[str, Any], Panel]],
) -> tuple[PanelGroup, ...]:
    kinds = list(dict.fromkeys(key for key, _, _ in drawn))
    tails = [_tail(key[0]) for key in kinds]
    ordered = sorted(drawn, key=lambda item: kinds.index(item[0]))
    groups = []
    for key, items in groupby(ordered, key=lambda item: item[0]):
        members = list(items)
        tail = _tail(key[0])
        chosen = {(len(e["rows"]), len(e["columns"])) for _, e, _ in members}
        shape = f"{key[1]:,} × {key[2]:,}"
        if len(chosen) == 1:
            rows, columns = chosen.pop()
            shape += f", chosen {rows:,} × {columns:,}"
        groups.append(
            PanelGroup(
                tail if tails.count(tail) == 1 else key[0],
                shape,
                tuple(panel for _, _, panel in members),
            )
        )
    return tuple(groups)


def _tail(kind: str) -> str:
    """Name a kind by what follows the number of its layer."""
    return kind.rpartition("*.")[2]


def _panel(entry: Mapping[str, Any], limit: float, name: str) -> Panel:
    outputs, inputs = int(entry["outputs"]), int(entry["inputs"])
    rows = "".join(
        f"M0 {start}.5h{inputs}" if length == 1 else f"M0 {start}h{inputs}v{length}H0z"
        for start, length in _runs(entry["rows"])
    )
    columns = "".join(
        f"M{start}.5 0v{outputs}" if length == 1 else f"M{start} 0v{outputs}h{length}V0z"
        for start, length in _runs(entry["columns"])
    )
    title = escape(
        f"{entry['name']}: {len(entry['rows']):,} of {outputs:,} rows and "
        f"{len(entry['columns']):,} of {inputs:,} columns"
    )
    numbers = _NUMBER.findall(entry["name"])
    picture = (
        f'<svg viewBox="0 0 {inputs} {outputs}" preserveAspectRatio="none" role="img">'
        f"<title>{title}</title><defs>"
        f'<path id="{name}-rows" d="{rows}"/><path id="{name}-columns" d="{columns}"/>'
        f'<mask id="{name}" maskUnits="userSpaceOnUse" x="0" y="0" width="{inputs}" '
        f'height="{outputs}"><use href="#{name}-rows" class="through"/></mask></defs>'
        f'<use href="#{name}-rows" class="row"/>'
        f'<use href="#{name}-columns" class="column"/>'
        f'<use href="#{name}-columns" class="crossing" mask="url(#{name})"/></svg>'
    )
    return Panel(
        numbers[-1] if numbers else "", min(inputs, limit), min(outputs, limit), picture
    )


def _runs(indices: Sequence[int]) -> list[tuple[int, int]]:
    """List starts and lengths, long runs of neighbours as one, so that all is short."""
    ordered = sorted(int(index) for index in indices)
    runs: list[tuple[int, int]] = []
    for _, pairs in groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0]):
        members = [index for _, index in pairs]
        if len(members) > _NEIGHBOURS:
            runs.append((members[0], len(members)))
        else:
            runs += [(index, 1) for index in members]
    return runs
