"""Slow, dense and obvious: what the fast paths are compared with.

Everything here goes through `torch.func` on the whole model, in float64, one example and
one class at a time where that is clearer. Nothing is imported from `smidgen.curvature`.
"""

from __future__ import annotations

from math import log, pi

import torch
from torch.func import functional_call, jacrev


def output_hessian(kind: str, logits: torch.Tensor) -> torch.Tensor:
    """Hessian of -log p in the outputs of one example (C,), by its textbook formula."""
    if kind == "categorical":
        probs = logits.softmax(-1)
        return probs.diag() - torch.outer(probs, probs)
    if kind == "bernoulli":
        return (logits.sigmoid() * (1 - logits.sigmoid())).diag()
    return torch.eye(len(logits), dtype=logits.dtype)


def centred(covariance: torch.Tensor) -> torch.Tensor:
    """Covariance of logits after their mean is taken off, from that of the logits (B, C, C)."""
    centring = torch.eye(covariance.shape[-1]).double() - 1 / covariance.shape[-1]
    return centring @ covariance @ centring


def sigmoid_by_sum(mean: float, variance: float) -> tuple[float, float]:
    """log E σ(f) and E H[σ(f)] for f ~ N(mean, variance), by a fine sum over f."""
    spread = variance**0.5
    # Where mean and variance are small against each other the tail adds most of it.
    step = 0.3 / max(1.0, spread)
    z = torch.arange(-13, 20, step, dtype=torch.float64)
    logits = mean + spread * z
    log_density = -0.5 * z.square() - 0.5 * log(2 * pi) + log(step)
    terms = log_density + torch.nn.functional.logsigmoid(logits)
    entropy = sum(torch.special.entr(each.sigmoid()) for each in (logits, -logits))
    return float(terms.logsumexp(0)), float((log_density.exp() * entropy).sum())


def output_jacobian(model, forward, batch, names):
    """Dense Jacobian of the outputs in the named parameters: {name: (B, C, *shape)}."""
    parameters = {n: p.detach() for n, p in model.named_parameters()}
    chosen = {n: parameters[n] for n in names}
    wrapper = _Wrapper(model, forward)

    def outputs(weights):
        everything = {f"model.{n}": p for n, p in {**parameters, **weights}.items()}
        return functional_call(wrapper, everything, (batch,))

    # torch's fused encoder layers cannot be differentiated this way.
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        return jacrev(outputs)(chosen)
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


class _Wrapper(torch.nn.Module):
    def __init__(self, model, forward):
        super().__init__()
        self.model, self.compute = model, forward

    def forward(self, batch):
        return self.compute(self.model, batch)


def subset_jacobian(model, forward, batch, subset) -> torch.Tensor:
    """Jacobian (B, C, |S|) over the chosen entries, parameter after parameter."""
    found = output_jacobian(model, forward, batch, list(subset.parts))
    return torch.cat(
        [found[n].flatten(2)[:, :, subset.indices(n)] for n in subset.parts], -1
    )


def seen_by_map(model, forward, batch, module_names):
    """Inputs (B, T, m) and output Jacobians ∂f/∂a (B, C, T, n) of a layer, use after use.

    The Jacobian comes from adding a zero to the layer's output and differentiating in it.
    """
    shapes, inputs = [], []

    def record(module, args, out):
        shapes.append(out.shape)
        inputs.append(_patches(module, args[0].detach()))

    _hooked(model, forward, batch, module_names, record)

    def outputs(zeros):
        left = list(zeros)
        return _hooked(model, forward, batch, module_names, lambda *a: a[2] + left.pop(0))

    zeros = tuple(torch.zeros(s, dtype=torch.float64) for s in shapes)
    found = jacrev(outputs)(zeros)
    batch_size = found[0].shape[0]
    uses = []
    for x, jacobian in zip(inputs, found, strict=True):
        own = torch.stack([jacobian[b, :, b] for b in range(batch_size)])  # (B, C, ..., n)
        if own.dim() == 5:  # a convolution's channels come before its places
            own = own.movedim(2, -1)
        n, m = own.shape[-1], x.shape[-1]
        uses.append((x.reshape(batch_size, -1, m), own.reshape(*own.shape[:2], -1, n)))
    return torch.cat([x for x, _ in uses], 1), torch.cat([d for _, d in uses], 2)


def inputs_of_map(model, forward, batch, module_names, examples):
    """Inputs (B, T, m) of a layer by hooks, use after use."""
    inputs = []

    def record(module, args, out):
        x = _patches(module, args[0].detach())
        inputs.append(x.reshape(examples, -1, x.shape[-1]))

    _hooked(model, forward, batch, module_names, record)
    return torch.cat(inputs, 1)


def _patches(module, x):
    """What a convolution multiplies its kernel with at each place, by convolving."""
    if not isinstance(module, torch.nn.Conv2d):
        return x
    m = module.weight[0].numel()
    one_hot = torch.eye(m, dtype=x.dtype).reshape(m, *module.weight.shape[1:])
    return module._conv_forward(x, one_hot, None).flatten(2).transpose(1, 2)


def _hooked(model, forward, batch, module_names, hook):
    modules = dict(model.named_modules())
    handles = [modules[name].register_forward_hook(hook) for name in module_names]
    try:
        return forward(model, batch)
    finally:
        for handle in handles:
            handle.remove()


def kfac_factors(x, jacobian, hessians, lengths_mask, approximation, bias):
    """A and G by loops over examples and positions.

    x (B, T, m), jacobian (B, C, T, n), hessians (B, C, C), lengths_mask (B, T) bool.
    """
    if bias:
        x = torch.cat([torch.ones(*x.shape[:2], 1, dtype=x.dtype), x], -1)
    batch, positions = x.shape[:2]
    a = torch.zeros(x.shape[-1], x.shape[-1], dtype=torch.float64)
    g = torch.zeros(jacobian.shape[-1], jacobian.shape[-1], dtype=torch.float64)
    count = 0
    for b in range(batch):
        kept = [t for t in range(positions) if lengths_mask[b, t]]
        if approximation == "expand":
            for t in kept:
                a += torch.outer(x[b, t], x[b, t])
                g += jacobian[b, :, t].T @ hessians[b] @ jacobian[b, :, t]
                count += 1
        else:
            mean = sum(x[b, t] for t in kept) / len(kept)
            total = sum(jacobian[b, :, t] for t in kept)
            a += torch.outer(mean, mean)
            g += total.T @ hessians[b] @ total
            count += 1
    return a / count, g


def linear_regression_posterior(x, noise, precision):
    """Covariance of the weights of y = x w + noise, in closed form."""
    return torch.linalg.inv(x.T @ x / noise + precision * torch.eye(x.shape[1]).double())


def dense_gaussian_map(module, part, inputs, noise, outer):
    """A Gaussian layer on dense means and scales, all gradients by autograd.

    Returns the outputs and the gradients, given `outer` for the outputs, of inputs, active
    means, active log-scales (unless there is no noise) and the bias, where there is one.
    """
    where = part.pattern.list_indices().long()
    inputs = inputs.clone().requires_grad_()
    means = part.to_dense().requires_grad_()
    logs = torch.full_like(means, -torch.inf).flatten()
    logs[where] = part.log_scales.detach()
    logs = logs.view_as(means).requires_grad_()
    conv = isinstance(module, torch.nn.Conv2d)

    def apply(values, weight, bias=None):
        if conv:
            return module._conv_forward(values, weight, bias)
        return torch.nn.functional.linear(values, weight, bias)

    def normals(shape):
        return torch.randn(shape, generator=part.generator, dtype=inputs.dtype)

    bias = None if part.bias is None else part.bias.detach().requires_grad_()
    if noise == "weights":
        # −∞ and zero: the scale of an inactive weight is exactly nothing.
        drawn = torch.zeros_like(means).flatten()
        drawn[where] = normals(where.shape)
        outputs = apply(inputs, means + logs.exp() * drawn.view_as(means), bias)
    else:
        outputs = apply(inputs, means, bias)
    if noise == "local":
        variance = apply(inputs.square(), (2 * logs).exp())
        channel = -3 if conv else -1
        shape = outputs.movedim(channel, 0).shape
        # The root of nothing is nothing, and so is its gradient.
        spread = torch.where(variance > 0, variance, 1).sqrt() * (variance > 0)
        outputs = outputs + spread * normals(shape).movedim(0, channel)
    leaves = [inputs, means, logs] if noise != "none" else [inputs, means]
    found = list(torch.autograd.grad(outputs, leaves + [bias] * (bias is not None), outer))
    for place in range(1, len(leaves)):
        found[place] = found[place].flatten()[where]
    return outputs, found
