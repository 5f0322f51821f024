"""Where the active weights of a sparse network are, and how they moved in training."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from smidgen.report.drawing.palette import INK
from smidgen.report.drawing.svg import drawing, sheet
from smidgen.types import Shape

Profile = Mapping[str, Sequence[float]]

_PANEL, _HEAD = 150.0, 34.0
_COLOURS = "cividis"


def connectivity_picture(epochs: Sequence[Profile], *, image: Shape | None = None) -> str:
    """Draw the share of active weights at each input of each layer, epoch by epoch."""
    names = list(epochs[0])
    with drawing():
        rows = len(names) + (image is not None)
        figure = sheet(3 * _PANEL + 40, rows * (_PANEL + _HEAD))
        grid = figure.add_gridspec(rows, 3, hspace=0.45, left=0.1, right=0.98, top=0.95)
        if image is not None:
            chosen = [0, len(epochs) // 2, len(epochs) - 1]
            most = max(max(epochs[i][names[0]]) for i in chosen)
            for place, epoch in enumerate(chosen):
                axes = figure.add_subplot(grid[0, place])
                values = np.array(epochs[epoch][names[0]]).reshape(image)
                axes.imshow(values, cmap=_COLOURS, vmin=0, vmax=most)
                axes.set_title(f"{names[0]}: epoch {epoch + 1}", fontsize=9, color=INK)
                axes.set_axis_off()
        for row, name in enumerate(names, start=image is not None):
            _through_time(figure.add_subplot(grid[row, :]), name, epochs)
        buffer = io.StringIO()
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        # The same picture is the same file.
        with matplotlib.rc_context({"svg.hashsalt": "connectivity"}):
            figure.savefig(buffer, format="svg", metadata=metadata)
    return buffer.getvalue()


def _through_time(axes: Axes, name: str, epochs: Sequence[Profile]) -> None:
    """Inputs across, ordered by their share at the end; epochs downwards."""
    values = np.array([epoch[name] for epoch in epochs])
    order = np.argsort(values[-1], kind="stable")[::-1]
    shown = axes.imshow(
        values[:, order], aspect="auto", cmap=_COLOURS, interpolation="nearest", vmin=0
    )
    axes.set_title(
        f"{name}: active share of each input's weights, densest at the end first",
        fontsize=9,
        color=INK,
        loc="left",
    )
    axes.set_ylabel("epoch", fontsize=9)
    count = len(epochs)
    ticks = sorted({0, count // 2, count - 1})
    axes.set_yticks(ticks, [str(tick + 1) for tick in ticks], fontsize=9)
    axes.set_xticks([])
    axes.figure.colorbar(shown, ax=axes, fraction=0.025, pad=0.01)
