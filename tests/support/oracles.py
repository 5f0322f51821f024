"""Slow, dense and obvious: what the fast paths are compared with.

Everything here goes through `torch.func` on the whole model, in float64, one example and
one class at a time where that is clearer. Nothing is imported from `smidgen.curvature`.
"""

from __future__ import annotations

from copy import copy
from math import log, pi, prod

import torch
from torch.func import functional_call, jacrev
from torch.nn.modules.conv import _ConvNd

from smidgen.runtime.guard import set_modes
from smidgen.runtime.shadow import shadow_model
from smidgen.runtime.sites.site import find_site


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
    shapes, inputs, places = [], [], []

    def record(module, args, kwargs, out):
        shapes.append(out.shape)
        inputs.append(_patches(module, args[0].detach()))
        places.append((module, kwargs.get("part")))

    _hooked(model, forward, batch, module_names, record)

    def outputs(zeros):
        left = list(zeros)
        return _hooked(model, forward, batch, module_names, lambda *a: a[3] + left.pop(0))

    zeros = tuple(torch.zeros(s, dtype=torch.float64) for s in shapes)
    found = jacrev(outputs)(zeros)
    batch_size = found[0].shape[0]
    uses = []
    for x, jacobian, (module, part) in zip(inputs, found, places, strict=True):
        own = torch.stack([jacobian[b, :, b] for b in range(batch_size)])  # (B, C, ..., n)
        if isinstance(module, _ConvNd):  # its channels come before its places
            own = own.movedim(2, -1)
        if part is not None:  # the other parts of the rows do not run
            whole = own.new_zeros(*own.shape[:-1], module.parts, own.shape[-1])
            whole[..., part, :] = own
            own = whole.flatten(-2)
        n, m = own.shape[-1], x.shape[-1]
        uses.append((x.reshape(batch_size, -1, m), own.reshape(*own.shape[:2], -1, n)))
    return torch.cat([x for x, _ in uses], 1), torch.cat([d for _, d in uses], 2)


def inputs_of_map(model, forward, batch, module_names, examples):
    """Inputs (B, T, m) of a layer by hooks, use after use."""
    inputs = []

    def record(module, args, kwargs, out):
        x = _patches(module, args[0].detach())
        inputs.append(x.reshape(examples, -1, x.shape[-1]))

    _hooked(model, forward, batch, module_names, record)
    return torch.cat(inputs, 1)


def _patches(module, x):
    """What a convolution multiplies its kernel with at each place, by convolving.

    In groups there is a patch of each at every place.
    """
    if not isinstance(module, _ConvNd):
        return x
    window = (module.in_channels // module.groups, *module.kernel_size)
    m = prod(window)
    one_hot = torch.eye(m, dtype=x.dtype).reshape(m, *window)
    single = copy(module)
    single._forward_hooks, single.groups = {}, 1
    kernels = one_hot.transpose(0, 1) if module.transposed else one_hot
    single._parameters = {"weight": torch.nn.Parameter(kernels), "bias": None}
    groups = x.unflatten(1, (module.groups, -1)).unbind(1)
    patches = [single(each).flatten(2).transpose(1, 2) for each in groups]
    return torch.stack(patches, 2).flatten(1, 2).detach()


def _hooked(model, forward, batch, module_names, hook):
    # Matrices that are used without a call have a place to be hooked in shadows only.
    shadow = shadow_model(model)
    set_modes(shadow)
    for name in module_names:
        find_site(shadow, name).register_forward_hook(hook, with_kwargs=True)
    return forward(shadow, batch)


def kfac_factors(x, jacobian, hessians, lengths_mask, approximation, bias):
    """A and G by loops over examples and positions.

    x (B, T, m), jacobian (B, C, T, n), hessians (B, C, C), lengths_mask (B, T) bool. In groups
    x has a position for each group at every place, and the jacobian has the places.
    """
    if bias:
        x = torch.cat([torch.ones(*x.shape[:2], 1, dtype=x.dtype), x], -1)
    batch, positions = x.shape[:2]
    a = torch.zeros(x.shape[-1], x.shape[-1], dtype=torch.float64)
    g = torch.zeros(jacobian.shape[-1], jacobian.shape[-1], dtype=torch.float64)
    count = 0
    for b in range(batch):
        kept = [t for t in range(positions) if lengths_mask[b, t]]
        places = kept if jacobian.shape[2] == positions else range(jacobian.shape[2])
        if approximation == "expand":
            for t in kept:
                a += torch.outer(x[b, t], x[b, t])
                count += 1
            for t in places:
                g += jacobian[b, :, t].T @ hessians[b] @ jacobian[b, :, t]
        else:
            mean = sum(x[b, t] for t in kept) / len(kept)
            total = sum(jacobian[b, :, t] for t in places)
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
