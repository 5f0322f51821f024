"""Where the graph of a tapped pass starts: at the lowest taps, whatever lies below them.

Only activations above a tap need derivatives. A model may ask for more, as training leaves it:
`enable_input_require_grads` makes a leaf of what the embeddings return, and gradient
checkpointing calls it. So an output that needs a gradient already is above a tap only if the
graph below it says so; else it is cut off there, and the pass is that of the plain model.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from torch import Tensor
from torch.autograd.graph import Node
from torch.utils.checkpoint import CheckpointFunction

from smidgen.errors import StructureError

_NOT_REENTRANT = "Pass use_reentrant=False there, or checkpoint in training mode only."


class GraphStart:
    """The tensors that the graph of one pass starts from."""

    def __init__(self) -> None:
        self.roots: list[Tensor] = []
        self._taps: set[Node] = set()
        self._open = True

    def join(self, out: Tensor) -> tuple[Tensor, bool]:
        """Put the output of a tapped layer into the graph; also say whether it starts there."""
        starts = not self._is_above_tap(out)
        if starts:
            root = out.detach().requires_grad_()
            if self._open:
                self.roots.append(root)
            # The clone lets the model change its activation in place, which a leaf forbids.
            out = root.clone()
        if self._open and out.grad_fn is not None:
            self._taps.add(out.grad_fn)
        return out, starts

    def close(self) -> None:
        """End the forward pass: what runs from now on computes activations again."""
        # Else the nodes would hold the graph for longer than its trace.
        self._open = False
        self._taps.clear()

    @property
    def is_closed(self) -> bool:
        """Whether the forward pass is over."""
        return not self._open

    def _is_above_tap(self, out: Tensor) -> bool:
        if not out.requires_grad or out.grad_fn is None:
            return False
        # Computed again in a backward pass, it needs a gradient or not, as it did before.
        if not self._open:
            return True
        # The nearest first: a tap is seldom far.
        waiting, seen = deque([out.grad_fn]), {out.grad_fn}
        while waiting and self._taps:
            node = waiting.popleft()
            if node in self._taps:
                return True
            below = {each for each, _ in node.next_functions if each is not None}
            waiting.extend(below - seen)
            seen |= below
        return False


def refuse_reentrant(name: str) -> None:
    """Refuse a layer that runs in a reentrant checkpoint, where no graph is recorded."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is CheckpointFunction.forward.__code__:
            raise StructureError(
                f"the layer {name!r} must run where autograd sees it, got one inside "
                "torch.utils.checkpoint with use_reentrant=True: its curvature would be zero. "
                f"{_NOT_REENTRANT}"
            )
        frame = frame.f_back


@contextmanager
def explain_reentrant() -> Iterator[None]:
    """Name the cause where a backward pass meets a reentrant checkpoint above its roots."""
    try:
        yield
    except RuntimeError as error:
        if "use_reentrant" not in str(error):
            raise
        raise StructureError(
            "no layer above the chosen ones may run in torch.utils.checkpoint with "
            f"use_reentrant=True, got one: no derivative goes through it. {_NOT_REENTRANT}"
        ) from error
