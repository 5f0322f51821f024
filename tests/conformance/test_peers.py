"""laplace-torch and curvlinops, written by others, find the same (see `tests/peers.py`).

What they cannot do is not here: rows and columns of a layer, GPT-2's layers in KFAC, padding.
"""

from __future__ import annotations

from math import sqrt

import pytest
import torch
from torch import nn

import smidgen
from tests.support.cases import (
    Case,
    OneBlock,
    bert,
    gpt2,
    linear,
    mlp,
    padded_tokens,
    vectors,
)
from tests.support.oracles import centred
from tests.support.peers import (
    Batches,
    apart,
    curvlinops_matrix,
    inputs_of,
    laplace_torch,
    log_determinant,
    only_affine,
    our_matrix,
    places,
    split,
    their_variance,
    without_biases,
)
from tests.support.settings import grouped
from tests.support.tolerances import PEER

PRECISION = 0.4


def full_tokens(outputs, targets, generator):
    """No padding: the peers do not know of it."""
    batch = padded_tokens(outputs, targets, generator)
    ids = torch.randint(1, 11, (4, 7), generator=generator)
    return {**batch, "input_ids": ids, "attention_mask": torch.ones_like(ids)}


def images(outputs, targets, generator):
    _, labels = vectors(outputs, targets, generator)
    return torch.randn(6, 2, 5, 5, dtype=torch.float64, generator=generator), labels


def conv(outputs):
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(27, outputs),
    )


BOTH_PEERS = [
    pytest.param(Case("linear-3", linear, 3, vectors), id="linear-3"),
    pytest.param(Case("linear", linear, 2, vectors, "gaussian"), id="linear-regression"),
    pytest.param(Case("mlp-2", mlp, 2, vectors), id="mlp-2"),
    pytest.param(Case("mlp-4", mlp, 4, vectors), id="mlp-4"),
    pytest.param(Case("mlp", mlp, 2, vectors, "gaussian"), id="mlp-regression"),
    pytest.param(Case("one-block-3", OneBlock, 3, full_tokens), id="one-block-3"),
    pytest.param(Case("bert-2", bert, 2, full_tokens), id="bert-2"),
    pytest.param(Case("conv-3", conv, 3, images), id="conv-3"),
]
ONLY_CURVLINOPS = [
    pytest.param(Case("mlp-labels", mlp, 3, vectors, "bernoulli"), id="mlp-labels")
]
ONLY_JACOBIANS = [
    pytest.param(Case("padded", OneBlock, 3, padded_tokens), id="one-block-padded"),
    pytest.param(Case("gpt2-2", gpt2, 2, padded_tokens), id="gpt2-2"),
]
both_approximations = pytest.mark.parametrize("approximation", ["expand", "reduce"])


def prepared(case, change=lambda model: model):
    model, batch = case.make()
    if hasattr(model, "set_attn_implementation"):
        # curvlinops' full GGN needs forward derivatives, which fused attention lacks.
        model.set_attn_implementation("eager")
    return only_affine(change(model)), batch, split(batch, 3)


def everything(model):
    return smidgen.select.sparse_kfac(model, percent=100)


def ours(case, model, batches, structure, select=everything, **options):
    return smidgen.fit.laplace(
        case.problem(model),
        batches,
        select(model),
        structure=structure,
        precision=PRECISION,
        **grouped(smidgen.fit.LaplaceSettings, **options),
    )


def theirs(case, model, batches, structure, posterior, **options):
    """Fitted under the prior and the noise of our posterior."""
    return laplace_torch(
        model,
        batches,
        structure,
        kind=case.kind,
        prior_precision=PRECISION,
        sigma_noise=sqrt(posterior.likelihood.scale),
        **options,
    )


def named(names):
    return lambda model: smidgen.select.named(model, names)


def our_variance(case, posterior, model, batch):
    """The covariance of centred logits, or the variances of a regression."""
    predictive = smidgen.predict(posterior, model, batch)
    return predictive.variance if case.kind == "gaussian" else predictive.logit_covariance


def assert_close_variance(case, found, expected):
    if case.kind == "gaussian":
        expected = expected.diagonal(dim1=-2, dim2=-1)
    else:
        expected = centred(expected)
    assert float(expected.abs().max()) > 1e-3
    torch.testing.assert_close(found, expected, **PEER)


def assert_same_posterior(case, posterior, model, batch, peer):
    found = our_variance(case, posterior, model, batch)
    assert_close_variance(case, found, their_variance(peer, batch))
    expected = float(peer.log_det_posterior_precision)
    assert log_determinant(posterior) == pytest.approx(expected, rel=PEER["rtol"])


@both_approximations
@pytest.mark.parametrize("case", BOTH_PEERS)
def test_kfac_is_that_of_laplace_torch(case, approximation):
    model, _, batches = prepared(case)
    posterior = ours(case, model, batches, "kron", approximation=approximation)
    peer = theirs(
        case, model, batches, "kron", posterior, approximation=approximation
    ).H_facs.to_matrix()
    where = places(model)
    found = apart(our_matrix(posterior, where), model, where)
    torch.testing.assert_close(found, peer, **PEER)


@both_approximations
@pytest.mark.parametrize("case", BOTH_PEERS + ONLY_CURVLINOPS)
def test_kfac_with_the_bias_is_that_of_curvlinops(case, approximation):
    model, batch, batches = prepared(case)
    posterior = ours(case, model, batches, "kron", approximation=approximation)
    peer = curvlinops_matrix(model, batches, case.kind, approximation)
    torch.testing.assert_close(our_matrix(posterior, places(model)), peer, **PEER)
    if case.kind == "bernoulli":
        return
    noise = posterior.likelihood.scale
    jacobians, _ = theirs(case, model, batches, "diag", posterior).backend.jacobians(
        inputs_of(batch)
    )
    precision = peer / noise + PRECISION * torch.eye(len(peer), dtype=peer.dtype)
    expected = jacobians @ torch.linalg.solve(precision, jacobians.transpose(1, 2))
    found = our_variance(case, posterior, model, batch)
    assert_close_variance(case, found, expected)
    assert log_determinant(posterior) == pytest.approx(
        float(precision.logdet()), rel=PEER["rtol"]
    )


@both_approximations
@pytest.mark.parametrize("case", BOTH_PEERS)
def test_weights_and_biases_apart_are_the_kfac_posterior_of_laplace_torch(
    case, approximation
):
    """Its blocks are independent, so ours of weights and of biases add up to it."""
    model, batch, batches = prepared(case)
    layers = smidgen.coverage(model).layers
    names = ([each.weight for each in layers], [each.bias for each in layers if each.bias])
    posteriors = [
        ours(case, model, batches, "kron", select=named(part), approximation=approximation)
        for part in names
    ]
    peer = theirs(case, model, batches, "kron", posteriors[0], approximation=approximation)
    variance = sum(our_variance(case, each, model, batch) for each in posteriors)
    assert_close_variance(case, variance, their_variance(peer, batch))
    determinant = sum(log_determinant(each) for each in posteriors)
    expected = float(peer.log_det_posterior_precision)
    assert determinant == pytest.approx(expected, rel=PEER["rtol"])


@pytest.mark.parametrize("case", BOTH_PEERS + ONLY_CURVLINOPS)
def test_ekfac_is_that_of_curvlinops(case):
    """With `expand` a null space of A is one of J too; else its basis would be free."""
    model, _, batches = prepared(case)
    posterior = ours(case, model, batches, "ekfac", approximation="expand")
    peer = curvlinops_matrix(model, batches, case.kind, "expand", corrected=True)
    torch.testing.assert_close(our_matrix(posterior, places(model)), peer, **PEER)


@pytest.mark.parametrize("case", BOTH_PEERS + ONLY_JACOBIANS)
def test_the_diagonal_is_that_of_laplace_torch(case):
    model, batch, batches = prepared(case)
    posterior = ours(case, model, batches, "diag")
    peer = theirs(case, model, batches, "diag", posterior)
    found = our_matrix(posterior, places(model)).diagonal()
    torch.testing.assert_close(found, peer.H, **PEER)
    assert_same_posterior(case, posterior, model, batch, peer)


@pytest.mark.parametrize("case", BOTH_PEERS + ONLY_JACOBIANS)
def test_the_full_ggn_is_that_of_laplace_torch(case):
    model, batch, batches = prepared(case)
    posterior = ours(case, model, batches, "full")
    peer = theirs(case, model, batches, "full", posterior)
    assert_same_posterior(case, posterior, model, batch, peer)


@pytest.mark.parametrize("case", BOTH_PEERS + ONLY_JACOBIANS)
def test_the_full_ggn_of_scattered_weights_is_laplace_torchs_subnetwork(case):
    model, batch, batches = prepared(case)
    subset = smidgen.select.weights(model, fraction=0.3)
    posterior = ours(case, model, batches, "full", select=lambda _: subset)
    start, chosen = 0, []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            chosen.append(start + subset.indices(name))
            start += parameter.numel()
    peer = theirs(
        case,
        model,
        batches,
        "full",
        posterior,
        subset_of_weights="subnetwork",
        subnetwork_indices=torch.cat(chosen),
    )
    assert_same_posterior(case, posterior, model, batch, peer)


def last_name(model, batches):
    name = smidgen.coverage(model).layers[-1].name
    return f"model.{name}" if isinstance(batches[0], dict) else name or None


@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
@pytest.mark.parametrize("case", [each for each in BOTH_PEERS if "linear" not in each.id])
def test_the_last_layer_is_that_of_laplace_torch(case, structure):
    change = without_biases if structure == "kron" else lambda model: model
    model, batch, batches = prepared(case, change)
    posterior = ours(case, model, batches, structure, select=smidgen.select.last_layer)
    peer = theirs(
        case,
        model,
        batches,
        structure,
        posterior,
        subset_of_weights="last_layer",
        last_layer_name=last_name(model, batches),
    )
    assert_same_posterior(case, posterior, model, batch, peer)


EVIDENCE = pytest.mark.parametrize("structure", ["kron", "diag", "full"])


def expanded(structure):
    """laplace-torch's default where positions share weights."""
    return {"approximation": "expand"} if structure == "kron" else {}


@EVIDENCE
@pytest.mark.parametrize("case", BOTH_PEERS)
def test_our_evidence_is_that_of_laplace_torch(case, structure):
    model, _, batches = prepared(case, without_biases)
    posterior = ours(case, model, batches, structure, **expanded(structure))
    peer = theirs(case, model, batches, structure, posterior)
    expected = float(peer.log_marginal_likelihood(prior_precision=PRECISION))
    found = float(smidgen.fit.log_evidence(posterior, model))
    assert found == pytest.approx(expected, rel=PEER["rtol"])


@both_approximations
def test_the_peers_average_inputs_over_padding_too(approximation):
    """Ours, told that there is no padding, is theirs; as it is, it is not."""
    case = Case("padded", OneBlock, 3, padded_tokens)
    model, _, batches = prepared(case)
    peer = curvlinops_matrix(model, batches, case.kind, approximation)
    blind = smidgen.Problem(model, smidgen.Categorical(3), mask=lambda _: None)
    posterior = smidgen.fit.laplace(
        blind,
        batches,
        everything(model),
        settings=smidgen.fit.LaplaceSettings(approximation=approximation),
    )
    torch.testing.assert_close(our_matrix(posterior, places(model)), peer, **PEER)
    seeing = ours(case, model, batches, "kron", approximation=approximation)
    distance = (our_matrix(seeing, places(model)) - peer).norm() / peer.norm()
    assert float(distance) > 0.01


@pytest.mark.parametrize(("structure", "excess"), [("kron", 0.5012), ("diag", 0.7771)])
def test_laplace_torch_counts_rows_that_have_no_label(structure, excess):
    """Rows labelled -100 add to its curvature, not to its loss; ours leaves them out."""
    case = Case("mlp-3", mlp, 3, vectors)
    model, (x, labels), _ = prepared(case, without_biases)
    partly = torch.where(torch.arange(6) < 4, labels, -100)
    kept, all_rows, marked = (
        Batches([batch]) for batch in ((x[:4], labels[:4]), (x, labels), (x, partly))
    )
    found = ours(case, model, marked, structure)
    assert found.num_data == 4

    def fitted(batches):
        return theirs(case, model, batches, structure, found)

    expected = float(fitted(kept).log_det_posterior_precision)
    assert log_determinant(found) == pytest.approx(expected, rel=PEER["rtol"])
    wrong = float(fitted(marked).log_det_posterior_precision)
    assert wrong == pytest.approx(
        float(fitted(all_rows).log_det_posterior_precision), rel=PEER["rtol"]
    )
    assert float(fitted(marked).loss) == pytest.approx(float(fitted(kept).loss))
    assert wrong - expected == pytest.approx(excess, rel=1e-3)
