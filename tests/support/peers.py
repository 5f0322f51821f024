"""laplace-torch and curvlinops behind one call, and smidgen's curvature in their order.

How their conventions differ from ours:

- Their vector runs parameter after parameter in the model's order; ours runs layer after layer,
  row after row, and a row is its bias, then its weights.
- laplace-torch's KFAC keeps weight and bias apart, G ⊗ A and G, without the curvature
  between them; ours, and curvlinops when asked, has one A with the bias as an input of one.
  So laplace-torch's variances are the sum of ours over weights alone and biases alone;
  with its biases frozen it fails.
- Both sum over examples. A batch counts in A by its share of the examples. No peer knows of
  padding: where it is, their A has the padded positions too.
- Their noise is a standard deviation, ours a variance. Their MSE is not halved.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager

import torch
from curvlinops import EKFACLinearOperator, KFACLinearOperator
from laplace import Laplace
from torch import nn

import smidgen
from smidgen.outputs.problem import batch_targets, model_outputs

LOSSES = {
    "categorical": (nn.CrossEntropyLoss, 1.0),
    "bernoulli": (nn.BCEWithLogitsLoss, 1.0),
    "gaussian": (nn.MSELoss, 0.5),
}


class Batches(list):
    """Batches that know how many examples they hold, as laplace-torch asks for."""

    @property
    def dataset(self):
        return range(sum(len(batch_targets(batch)) for batch in self))


class ByBatch(nn.Module):
    """A model that is called on a whole batch, as laplace-torch calls it on a mapping."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, batch):
        return model_outputs(self.model, batch)


def split(batch, rows):
    """Two batches of unequal size: weights of batches must not be taken for equal."""
    if isinstance(batch, Mapping):
        first = {key: value[:rows] for key, value in batch.items()}
        return Batches([first, {key: value[rows:] for key, value in batch.items()}])
    x, y = batch
    return Batches([(x[:rows], y[:rows]), (x[rows:], y[rows:])])


def inputs_of(batch):
    return batch if isinstance(batch, Mapping) else batch[0]


def only_affine(model):
    """Freeze what smidgen does not treat, so that the peers leave it out too."""
    universe = smidgen.coverage(model).universe
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in universe)
    return model


def without_biases(model):
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            module.bias = None
    return model


@contextmanager
def double():
    """laplace-torch multiplies its GGN with an identity of the default type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def laplace_torch(
    model, batches, structure, *, kind="categorical", approximation=None, **options
):
    """Fit laplace-torch to the trainable parameters of a model.

    Args:
        model: A model whose parameters are all of affine layers, or frozen.
        batches: The data.
        structure: "kron", "diag" or "full".
        kind: What the outputs mean.
        approximation: "expand" or "reduce", for "kron".
        options: Passed on.

    Returns:
        Their fitted posterior.
    """
    if approximation is not None:
        # Named for another backend, but this is how curvlinops' option is passed.
        options["asdl_fisher_kwargs"] = {"kfac_approx": approximation}
    found = Laplace(
        ByBatch(model) if isinstance(batches[0], Mapping) else model,
        "regression" if kind == "gaussian" else "classification",
        hessian_structure=structure,
        **{"subset_of_weights": "all", **options},
    )
    with double():
        found.fit(batches)
    return found


def their_variance(found, batch):
    """Covariance of the outputs (B, C, C) from their Jacobians and their posterior."""
    backend = found.backend
    jacobians = backend.last_layer_jacobians if backend.last_layer else backend.jacobians
    return found.functional_variance(jacobians(inputs_of(batch))[0])


def curvlinops_matrix(model, batches, kind, approximation, *, corrected=False):
    """Dense KFAC or EKFAC of curvlinops with weight and bias together."""
    loss, factor = LOSSES[kind]
    mapped = isinstance(batches[0], Mapping)
    operator = (EKFACLinearOperator if corrected else KFACLinearOperator)(
        ByBatch(model) if mapped else model,
        loss(reduction="sum"),
        [p for p in model.parameters() if p.requires_grad],
        [(inputs_of(batch), batch_targets(batch)) for batch in batches],
        fisher_type="type-2",
        kfac_approx=approximation,
        separate_weight_and_bias=False,
        check_deterministic=False,
        batch_size_fn=(lambda x: len(x["input_ids"])) if mapped else None,
    )
    return factor * (operator @ torch.eye(operator.shape[1], dtype=torch.float64))


def places(model, names=None):
    """Where each layer's rows (bias, weights) stand in their vector: {name: (n, m)}."""
    start, where = 0, {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and (names is None or name in names):
            where[name] = torch.arange(start, start + parameter.numel())
            where[name] = where[name].reshape(parameter.shape)
            start += parameter.numel()
    found = {}
    for each in smidgen.coverage(model).layers:
        if each.weight in where:
            weight = where[each.weight]
            weight = each.as_matrix(weight)
            bias = [] if each.bias is None else [where[each.bias][:, None]]
            found[each.name] = torch.cat([*bias, weight], 1)
    return found


def our_matrix(posterior, where):
    """smidgen's curvature of all layers as one matrix in their order."""
    size = sum(each.numel() for each in where.values())
    found = torch.zeros(size, size, dtype=torch.float64)
    for name, operator in posterior.operators.items():
        flat = where[name].flatten()
        found[flat[:, None], flat] = operator.dense()
    return found


def apart(matrix, model, where):
    """The same matrix without the curvature between a layer's bias and its weights."""
    found = matrix.clone()
    for each in smidgen.coverage(model).layers:
        if each.name in where and each.bias is not None:
            bias, weight = where[each.name][:, 0], where[each.name][:, 1:].flatten()
            found[bias[:, None], weight] = 0
            found[weight[:, None], bias] = 0
    return found


def log_determinant(posterior):
    """Of the posterior precision, from the eigenvalues smidgen keeps."""
    noise = posterior.likelihood.scale
    return sum(
        float((each.values.double() / noise + posterior.precision).log().sum())
        for each in posterior.operators.values()
    )
