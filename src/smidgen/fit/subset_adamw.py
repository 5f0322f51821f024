"""AdamW over chosen weights only: in your own loop, under accelerate, in a Trainer.

What is trained is the difference d to the values the weights had at the first step, one
number for each chosen weight, so the state is four vectors of that length and decay pulls
towards the pretrained values. Nothing else is written: all other weights stay bitwise.

    optimiser = SubsetAdamW(model, subset, lr=1e-3)
    trainer = transformers.Trainer(model, args, optimizers=(optimiser, None), ...)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, overload

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError, StoreError
from smidgen.weights.subset import Subset
from smidgen.weights.vector import SubsetIndex, find_parameters


class SubsetAdamW(torch.optim.Optimizer):
    """AdamW whose step moves the chosen entries of some parameters.

    Autograd gives gradients of whole parameters; the entries that are not chosen are
    ignored. A Trainer's own `max_grad_norm` would count those too, so set it to 0 and use
    `clip`. Parameters that the subset does not touch get gradients as well:
    `requires_grad_(False)` on them saves that memory; given a model, `zero_grad` clears
    them all.

    Args:
        parameters: The model, or its parameters by name.
        subset: The weights that move.
        lr: The rate.
        betas: Decay rates of the two moments.
        eps: Added to the root of the second.
        weight_decay: Pull towards the pretrained values, times the rate; 0 is none.
        clip: Largest norm of the chosen entries' gradient; default: no limit.

    Raises:
        ArgumentError: If lr or weight_decay is negative, or clip is not positive.
    """

    def __init__(
        self,
        parameters: nn.Module | Mapping[str, Tensor],
        subset: Subset,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        clip: float | None = None,
    ) -> None:
        if not lr >= 0 or not weight_decay >= 0 or not (clip is None or clip > 0):
            raise ArgumentError(
                "lr and weight_decay must be 0 or more and clip > 0, got "
                f"{lr}, {weight_decay} and {clip}."
            )
        self.subset = subset
        self._others: list[Tensor] = []
        if isinstance(parameters, nn.Module):
            self.tensors = find_parameters(parameters, subset)
            self._others = list(parameters.parameters())
        else:
            self.tensors = {name: parameters[name] for name in subset.parts}
        self._places: SubsetIndex | None = None
        rates: dict[str, Any] = {"lr": lr, "betas": betas, "eps": eps}
        limits = {"weight_decay": weight_decay, "clip": clip}
        super().__init__(list(self.tensors.values()), {**rates, **limits})

    @property
    def difference(self) -> Tensor:
        """What has been added to each chosen weight, (S,), in the subset's order."""
        return self._state()["difference"]

    state_names = frozenset({"step", "base", "difference", "exp_avg", "exp_avg_sq"})
    """What it remembers."""

    @property
    def state_shape(self) -> tuple[int, ...]:
        """The shape of all it remembers but the count of steps: that of the chosen weights."""
        return (self.subset.size,)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of the model, not of the touched parameters alone."""
        super().zero_grad(set_to_none)
        for p in self._others:
            p.grad = None if p.grad is None or set_to_none else p.grad.zero_()

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move the chosen weights by their gradients; `closure` as in torch."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        state, group = self._state(), self.param_groups[0]
        gradient = self._gradient()
        if group["clip"] is not None:
            norm = torch.linalg.vector_norm(gradient)
            gradient.mul_((group["clip"] / (norm + 1e-6)).clamp(max=1.0))
        state["step"] += 1
        count, rate, (first, second) = float(state["step"]), group["lr"], group["betas"]
        difference = state["difference"]
        state["exp_avg"].lerp_(gradient, 1 - first)
        state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        size = (state["exp_avg_sq"] / (1 - second**count)).sqrt_().add_(group["eps"])
        difference.mul_(1 - rate * group["weight_decay"])
        difference.addcdiv_(state["exp_avg"], size, value=-rate / (1 - first**count))
        self._set(difference)
        return loss

    @torch.no_grad()
    def assign(self, difference: Tensor) -> None:
        """Set the chosen weights to their pretrained values plus a difference."""
        self._state()["difference"].copy_(difference)
        self._set(difference)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up another's state, and put the weights where it had them."""
        for saved in state_dict["state"].values():
            # One type for all but the count of steps, or a step would mix two.
            kinds = {value.dtype for name, value in saved.items() if name != "step"}
            if len(kinds) > 1:
                raise StoreError(f"the optimiser's state must have one type, got {kinds}")
        super().load_state_dict(state_dict)
        # torch casts state to its parameter's type; half of a difference is lost in bf16.
        for number, saved in state_dict["state"].items():
            state = self.state[self.param_groups[0]["params"][int(number)]]
            for name, value in saved.items():
                state[name] = value.clone().to(state[name].device)
        if self.state:
            with torch.no_grad():
                self._set(self.difference)

    def _set(self, difference: Tensor) -> None:
        assert self._places is not None
        self._places.scatter(self.tensors, self._state()["base"] + difference)

    def _gradient(self) -> Tensor:
        """Line up the chosen entries' gradients, (S,); those that have none are zero."""
        assert self._places is not None
        gradients = {
            name: torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            for name, tensor in self.tensors.items()
        }
        return self._places.gather(gradients)

    def _state(self) -> dict[str, Tensor]:
        """The state of all chosen weights; it is torch's state of the first parameter."""
        if self._places is None:
            # Not before the first step: accelerate may move the model in between.
            self._places = SubsetIndex(self.subset, self.tensors)
        first = self.param_groups[0]["params"][0]
        state: dict[str, Tensor] = self.state[first]
        if not state:
            base = self._places.gather(self.tensors)
            state["step"] = torch.tensor(0.0)
            state["base"] = base
            for name in ("difference", "exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(base)
        return state
