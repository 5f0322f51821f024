"""Fused experts through their sites: the same outputs, and the Jacobians of autograd."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import (
    GptOssConfig,
    GptOssForSequenceClassification,
    MixtralConfig,
    MixtralForSequenceClassification,
)

import smidgen
from smidgen.errors import SmidgenWarning
from smidgen.outputs.problem import SettledProblem
from smidgen.runtime.guard import set_modes
from smidgen.runtime.shadow import shadow_model
from smidgen.runtime.sites.site import find_site

SIZES = {
    "vocab_size": 17,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "num_labels": 2,
    "pad_token_id": 0,
}
IDS = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 10], [11, 3, 12, 4]])
BATCH = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}


def mixtral(how):
    torch.manual_seed(0)
    model = MixtralForSequenceClassification(MixtralConfig(**SIZES)).eval()
    model.config._experts_implementation = how
    return disturb(model)


def gpt_oss(how):
    """Transposed, with biases and a gate of its own."""
    torch.manual_seed(0)
    config = GptOssConfig(**SIZES, layer_types=["full_attention"])
    model = GptOssForSequenceClassification(config).eval()
    model.config._experts_implementation = how
    return disturb(model)


def disturb(model):
    for parameter in model.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("make", [mixtral, gpt_oss])
@pytest.mark.parametrize("how", ["eager", "batched_mm", "grouped_mm"])
def test_outputs_are_those_of_transformers(make, how):
    model = make(how)
    shadow, runs = shadow_model(model), []
    set_modes(shadow)
    for name in ("gate_up_proj", "down_proj"):
        site = find_site(shadow, f"model.layers.0.mlp.experts.{name}")
        site.register_forward_hook(lambda _, args, out: runs.append(tuple(out.shape)))
    with torch.no_grad():
        torch.testing.assert_close(shadow(**BATCH).logits, model(**BATCH).logits)
    assert runs == [(3 * 4 * 2, 16), (3 * 4 * 2, 8)]


@pytest.mark.parametrize("make", [mixtral, gpt_oss])
def test_their_layers_agree_with_autograd(make, unchanged):
    model = make("eager").double()
    layers = {layer.name: layer for layer in smidgen.coverage(model).layers}
    experts = layers["model.layers.0.mlp.experts.gate_up_proj"]
    assert (experts.outputs, experts.inputs) == (3 * 16, 8)
    with unchanged(model):
        problem = SettledProblem(model, smidgen.Categorical(2))
        verification = smidgen.verify(problem, [BATCH], rows=12)
    # Their norms and routers work in fp32, whatever the model does.
    assert verification.agrees, str(verification)
    assert {check.name for check in verification.checks} == set(layers)


def test_a_chosen_block_of_experts_is_drawn_and_stored(tmp_path):
    model = gpt_oss("eager")
    subset = smidgen.select.sparse_kfac(model, percent=30)
    posterior = smidgen.fit.laplace(model, [BATCH], subset, progress=False)
    assert "model.layers.0.mlp.experts.down_proj" in posterior.operators
    smidgen.save(posterior, tmp_path / "posterior")
    again = smidgen.load(tmp_path / "posterior", model)
    # The draws run transformers' own experts, the Jacobians theirs through sites.
    for how in ({}, {"samples": 5}):
        before = smidgen.predict(posterior, model, BATCH, **how).to_dict()
        assert before == smidgen.predict(again, model, BATCH, **how).to_dict()
    assert smidgen.plan(model, batch=BATCH).rows


@pytest.mark.parametrize("approximation", ["expand", "reduce"])
def test_padding_is_in_no_factor_of_experts(approximation):
    model = mixtral("eager").double()
    texts = [IDS[:1], IDS[1:2, :2], IDS[2:, :3]]
    alone = [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in texts]
    rows = [nn.functional.pad(ids, (0, 9 - ids.shape[1])) for ids in texts]
    padded = torch.cat(rows)
    together = {"input_ids": padded, "attention_mask": (padded > 0).long()}
    problem = SettledProblem(model, smidgen.Categorical(2))
    subset = smidgen.select.sparse_kfac(model, percent=100)
    settings = smidgen.fit.LaplaceSettings(approximation=approximation)
    expected, found = (
        smidgen.fit.laplace(problem, batches, subset, settings=settings, progress=False)
        for batches in (alone, [together])
    )
    for name in ("gate_up_proj", "down_proj"):
        name = f"model.layers.0.mlp.experts.{name}"
        # Norms and routers work in fp32.
        torch.testing.assert_close(
            found.operators[name].variances(1.0, 1.0),
            expected.operators[name].variances(1.0, 1.0),
            rtol=1e-5,
            atol=0,
        )
    verification = smidgen.verify(problem, [together], rows=12)
    assert verification.agrees, str(verification)


def test_experts_whose_weights_are_used_past_their_call_stay_deterministic():
    model, name = gpt_oss("eager").double(), "model.layers.0.mlp.experts.down_proj"

    def forward(model, batch):
        return model(**batch).logits * model.model.layers[0].mlp.experts.down_proj.norm()

    problem = SettledProblem(model, smidgen.Categorical(2), forward)
    subset = smidgen.select.sparse_kfac(model, percent=100)
    with pytest.warns(SmidgenWarning, match=f"{name}. the model uses weights of"):
        posterior = smidgen.fit.laplace(problem, [BATCH], subset, progress=False)
    layers = {layer.name for layer in smidgen.coverage(model).layers}
    assert set(posterior.operators) == layers - {name}
