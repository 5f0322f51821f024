"""A posterior over PEFT's LoRA adapter on a frozen base, against the dense oracle."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.testing import assert_close
from transformers import BertForSequenceClassification

import smidgen
from smidgen.curvature.operators import JOINT, STRUCTURES
from smidgen.errors import StructureError
from smidgen.outputs.problem import model_outputs
from smidgen.weights.blocks import find_blocks
from tests.support.oracles import (
    centred,
    kfac_factors,
    output_hessian,
    output_jacobian,
    seen_by_map,
    subset_jacobian,
)
from tests.support.tiny import WORDS, bert_config
from tests.support.tolerances import EXACT

PAGE = Path(__file__).parents[2] / "docs" / "methods" / "lora.md"
CLASSES, PRECISION = 3, 0.7


def adapted():
    """A BERT with adapters in a trained-looking state; only they and the head train."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        # Written-out attention: the oracle differentiates it in one sweep.
        config = bert_config(num_labels=CLASSES, attn_implementation="eager")
        base = BertForSequenceClassification(config)
        told = LoraConfig(
            task_type="SEQ_CLS",
            r=2,
            lora_alpha=6,
            lora_dropout=0.1,
            target_modules=["query", "value"],
        )
        model = get_peft_model(base, told).double()
        for parameter in model.parameters():
            parameter.data.add_(0.3 * torch.randn_like(parameter))
    return model


def padded(seed=0):
    generator = torch.Generator().manual_seed(seed)
    mask = (torch.arange(7) < torch.tensor([7, 3, 5, 2])[:, None]).long()
    ids = torch.randint(4, len(WORDS), mask.shape, generator=generator) * mask
    labels = torch.randint(CLASSES, (4,), generator=generator)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def curvature(model, batch, block, structure):
    """The curvature of one layer by loops, (n·m, n·m)."""
    outputs = model_outputs(model, batch).detach()
    hessians = torch.stack([output_hessian("categorical", each) for each in outputs])
    if structure == "kron":
        x, jacobian = seen_by_map(model, model_outputs, batch, block.layer.modules)
        mask = batch["attention_mask"].bool()
        a, g = kfac_factors(x, jacobian, hessians, mask, "reduce", bias=False)
        return torch.kron(g, a)
    names = [block.layer.weight]
    found = output_jacobian(model, model_outputs, batch, names)[names[0]].flatten(2)
    return torch.einsum("bcp,bcd,bdq->pq", found, hessians, found).diag().diag()


@pytest.mark.parametrize("structure", STRUCTURES)
def test_variances_are_those_of_the_dense_oracle(structure, unchanged):
    model, batch = adapted(), padded()
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    assert any("query.base_layer" in name for name in frozen)
    subset = smidgen.select.named(model, "*lora_*")
    assert all("lora_A" in name or "lora_B" in name for name in subset.parts)
    with unchanged(model):
        posterior = smidgen.fit.laplace(
            model, [batch], subset, structure=structure, precision=PRECISION
        )
        predictive = smidgen.predict(posterior, model, batch, link="diagonal-probit")
    model.eval()
    chosen = find_blocks(model, subset)
    jacobians = {
        block.layer.name: output_jacobian(
            model, model_outputs, batch, [block.layer.weight]
        )[block.layer.weight].flatten(2)
        for block in chosen
    }
    if structure == "full":
        together = subset_jacobian(model, model_outputs, batch, subset)
        outputs = model_outputs(model, batch).detach()
        hessians = torch.stack([output_hessian("categorical", each) for each in outputs])
        dense = {JOINT: torch.einsum("bcp,bcd,bdq->pq", together, hessians, together)}
        jacobians = {JOINT: together}
    elif structure in ("ekfac", "isotropic"):
        # Measured in the basis of the factors, which its own test compares, or not at all.
        dense = {name: each.dense() for name, each in posterior.operators.items()}
    else:
        dense = {b.layer.name: curvature(model, batch, b, structure) for b in chosen}
    expected = torch.zeros(4, CLASSES, CLASSES, dtype=torch.float64)
    for name, jacobian in jacobians.items():
        prior = PRECISION * torch.eye(len(dense[name]), dtype=torch.float64)
        expected += jacobian @ torch.linalg.inv(dense[name] + prior) @ jacobian.mT
    assert_close(predictive.logit_covariance, centred(expected), **EXACT)


@pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")
def test_the_code_of_its_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]
    model = adapted()
    names = {
        "smidgen": smidgen,
        "model": model,
        "train_loader": [padded(1), padded(2)],
        "val_loader": [padded(3), padded(4)],
        "batch": padded(5),
    }
    exec(code, names)
    assert any("modules_to_save" in name for name in names["subset"].parts)
    assert torch.isfinite(names["predictive"].mutual_information).all()
    loaded = smidgen.load("adapter-posterior", model)
    again = smidgen.predict(loaded, model, names["batch"])
    assert_close(again.log_probs, names["predictive"].log_probs, **EXACT)


def test_merged_factors_are_refused_by_name():
    model = adapted()
    model.merge_adapter()
    told = r"lora_A.default.weight' of shape \(2, 8\) \(its adapter is merged into the base"
    with pytest.raises(StructureError, match=told):
        smidgen.fit.laplace(model, [padded()], smidgen.select.named(model, "*lora_*"))
