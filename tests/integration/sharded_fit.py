"""Run by `accelerate launch`: fit on a shard of the data, and save what it came to.

Each process also fits all data alone, for comparison, and its shard alone, which must not
come to the same.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from safetensors.torch import save_file
from torch.utils.data import DataLoader, TensorDataset

import smidgen
from smidgen.integrations.distributed import all_reduce, keep_own
from tests.support.cases import mlp
from tests.support.settings import grouped

# Seven batches, the last of them short: four and three for two processes.
ROWS, BATCH = 27, 4
NEW_ROWS = 6
STRUCTURES = ("kron", "ekfac", "diag", "full")
PERCENTS = (50, 100)


def problems():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(ROWS, 4, dtype=torch.float64, generator=generator)
    labels = torch.randint(0, 3, (ROWS,), generator=generator)
    numbers = torch.randn(ROWS, 3, dtype=torch.float64, generator=generator)
    yield "classes", inputs, labels, {}
    yield "numbers", inputs, numbers, {"noise": "per-output"}


def new_inputs():
    generator = torch.Generator().manual_seed(2)
    return torch.randn(NEW_ROWS, 4, dtype=torch.float64, generator=generator)


def meaning(posterior, model):
    """What a posterior says, whatever the signs and the order of its eigenvectors.

    That is the curvature in the weights themselves, U diag(h) Uᵀ, and the predictive.
    """
    found = {
        f"{name}.curvature": operator.dense()
        for name, operator in posterior.operators.items()
    }
    predictive = smidgen.predict(posterior, model, (new_inputs(),))
    if predictive.kind == "categorical":
        found["probabilities"] = predictive.probs
        found["covariance"] = predictive.logit_covariance
    else:
        found |= {"variance": predictive.variance, "noise": predictive.noise}
    scalars = [posterior.num_data, posterior.likelihood.scale, posterior.log_likelihood]
    found["scalars"] = torch.tensor(scalars, dtype=torch.float64)
    return {name: value.double().contiguous() for name, value in found.items()}


def fitted(model, accelerator, shard, everything, told):
    """Posteriors by what was fitted, and to whose rows: of both, of one, of a shard."""
    subsets = {p: smidgen.select.sparse_kfac(model, percent=p) for p in PERCENTS}
    whose = {"both": shard, "alone": everything, "shard": shard}
    for who, batches in whose.items():
        for structure in STRUCTURES:
            how = {"structure": structure, "progress": False, **told}
            reduce = all_reduce if who == "both" else keep_own
            made = smidgen.fit.laplace(
                model,
                batches,
                subsets[50],
                reduce=reduce,
                **grouped(smidgen.fit.LaplaceSettings, **how),
            )
            yield structure, who, made
        reduce = accelerator.reduce if who == "both" else keep_own
        many = smidgen.fit.laplace_many(model, batches, subsets, reduce=reduce)
        for percent, made in many.items():
            yield f"many{percent}", who, made


def main(folder):
    settings = DataLoaderConfiguration(even_batches=False)
    accelerator = Accelerator(cpu=True, dataloader_config=settings)
    assert accelerator.num_processes == 2
    found = {}
    for name, inputs, targets, told in problems():
        torch.manual_seed(1)
        model = mlp(3).double()
        data = TensorDataset(inputs, targets)
        shard = accelerator.prepare(DataLoader(data, batch_size=BATCH))
        sizes = [len(batch[0]) for batch in shard]
        found[f"{name}.rows"] = torch.tensor(sum(sizes))
        found[f"{name}.batches"] = torch.tensor(len(sizes))
        everything = [(inputs, targets)]
        for what, who, posterior in fitted(model, accelerator, shard, everything, told):
            for part, value in meaning(posterior, model).items():
                found[f"{name}.{what}.{part}.{who}"] = value
    save_file(found, Path(folder) / f"{accelerator.process_index}.safetensors")


if __name__ == "__main__":
    main(sys.argv[1])
