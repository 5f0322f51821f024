"""Fixtures: the cases, and a guard that proves a caller's model unchanged."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from tests.support.cases import CASES

# Two workers of one thread each are faster than two that fight for the cores.
torch.set_num_threads(1)


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request):
    return request.param


def snapshot(model):
    """Everything of a model that a pass could change."""
    return {
        "weights": {k: v.clone() for k, v in model.state_dict().items()},
        "ids": {n: id(p) for n, p in model.named_parameters(remove_duplicate=False)},
        "flags": {n: p.requires_grad for n, p in model.named_parameters()},
        "grads": {
            n: None if p.grad is None else p.grad.clone()
            for n, p in model.named_parameters()
        },
        "training": {n: m.training for n, m in model.named_modules()},
        "hooks": {
            n: [list(getattr(m, kind)) for kind in vars(m) if kind.endswith("_hooks")]
            for n, m in model.named_modules()
        },
        "attributes": {n: sorted(vars(m)) for n, m in model.named_modules()},
        "rng": torch.get_rng_state(),
        "grad_mode": torch.is_grad_enabled(),
        "dtype": torch.get_default_dtype(),
    }


def same(left, right) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    return left == right


@pytest.fixture
def unchanged():
    """A context in which a model may be used but not changed."""

    @contextmanager
    def guard(model):
        before = snapshot(model)
        try:
            yield
        finally:
            after = snapshot(model)
            changed = [key for key in before if not same(before[key], after[key])]
            assert not changed, f"the model's {', '.join(changed)} changed"

    return guard
