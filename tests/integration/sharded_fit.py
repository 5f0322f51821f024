"""Run by `accelerate launch`: fit on a shard of the data, and save what it came to.

The first process also fits all data alone, for comparison.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from safetensors.torch import save_file
from tests.cases import mlp
from torch.utils.data import DataLoader, TensorDataset

import smidgen
from smidgen.integrations.distributed import all_reduce

ROWS = 23


def problems():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(ROWS, 4, dtype=torch.float64, generator=generator)
    labels = torch.randint(0, 3, (ROWS,), generator=generator)
    numbers = torch.randn(ROWS, 3, dtype=torch.float64, generator=generator)
    yield "classes", inputs, labels, {}
    yield "numbers", inputs, numbers, {"noise": "per-output"}


def flat(posterior):
    """Everything a posterior consists of, by name; eigenvectors only up to their sign."""
    found = {
        f"{name}.{part}": value.double().contiguous()
        for name, operator in posterior.operators.items()
        for part, value in vars(operator).items()
        if isinstance(value, torch.Tensor) and "vectors" not in part
    }
    scalars = [posterior.num_data, posterior.likelihood.scale, posterior.log_likelihood]
    return {**found, "scalars": torch.tensor(scalars, dtype=torch.float64)}


def main(folder):
    settings = DataLoaderConfiguration(even_batches=False)
    accelerator = Accelerator(cpu=True, dataloader_config=settings)
    assert accelerator.num_processes == 2
    found = {}
    for name, inputs, targets, told in problems():
        torch.manual_seed(1)
        model = mlp(3).double()
        data = TensorDataset(inputs, targets)
        shard = accelerator.prepare(DataLoader(data, batch_size=4))
        sizes = [len(batch[0]) for batch in shard]
        found[f"{name}.rows"] = torch.tensor(sum(sizes))
        percents = {p: smidgen.select.sparse_kfac(model, percent=p) for p in (50, 100)}
        for structure in ("kron", "ekfac", "diag", "full"):
            args = (percents[50],)
            how = {"structure": structure, "progress": False, **told}
            both = smidgen.fit.laplace(model, shard, *args, reduce=all_reduce, **how)
            alone = smidgen.fit.laplace(model, [(inputs, targets)], *args, **how)
            for who, posterior in (("both", both), ("alone", alone)):
                for part, value in flat(posterior).items():
                    found[f"{name}.{structure}.{part}.{who}"] = value
        many = smidgen.fit.laplace_many(model, shard, percents, reduce=accelerator.reduce)
        one = smidgen.fit.laplace_many(model, [(inputs, targets)], percents)
        for percent in percents:
            for who, posterior in (("both", many[percent]), ("alone", one[percent])):
                for part, value in flat(posterior).items():
                    found[f"{name}.many{percent}.{part}.{who}"] = value
    save_file(found, Path(folder) / f"{accelerator.process_index}.safetensors")


if __name__ == "__main__":
    main(sys.argv[1])
