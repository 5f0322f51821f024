"""Run in two processes: fit sharded weights or rows, and save how far from one process.

python -m tests.integration.several_processes RANK FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed
from safetensors.torch import save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import smidgen
from smidgen.errors import ArgumentError, StructureError
from smidgen.integrations.distributed import all_reduce, keep_own

# Neither batches nor rows can be shared out evenly.
PROCESSES, ROWS, BATCH = 2, 11, 3


class Adapted(nn.Module):
    """An embedding, a frozen layer with a low-rank adapter, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(7, 6), nn.LayerNorm(6)
        self.base = nn.Linear(6, 6)
        self.lora_A = nn.Linear(6, 2, bias=False)
        self.lora_B = nn.Linear(2, 6, bias=False)
        self.head = nn.Linear(6, 3)
        self.base.requires_grad_(False)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, ids):
        x = self.norm(self.embed(ids))
        x = torch.tanh(self.base(x) + self.scale * self.lora_B(self.lora_A(x)))
        return self.head(x.mean(1))


def make_model():
    torch.manual_seed(0)
    return Adapted().double()


def shard(model):
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for part in (model.base, model.lora_A, model.head):
        fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def make_data():
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(7, (ROWS, 4), generator=generator)
    return ids, torch.randint(3, (ROWS,), generator=generator)


SUBSETS = {
    "last": smidgen.select.last_layer,
    "kfac": lambda model: smidgen.select.sparse_kfac(model, percent=50),
    "lora": lambda model: smidgen.select.named(model, "*lora_*"),
}


def meaning(posterior, model, ids):
    """What a posterior says: its curvature, and its predictions."""
    found = {f"{n}.curvature": o.dense() for n, o in posterior.operators.items()}
    linearised = smidgen.predict(posterior, model, (ids,))
    drawn = smidgen.predict(posterior, model, (ids,), samples=3)
    found |= {"covariance": linearised.logit_covariance, "drawn": drawn.probs}
    found["rows"] = torch.tensor(posterior.num_data)
    return found


def fit(model, batches, subset, reduce):
    return smidgen.fit.laplace(model, batches, subset, reduce=reduce, progress=False)


def fit_sharded_weights(rank):
    """Pairs of what plain and sharded weights come to, by name."""
    (ids, labels), plain, model = make_data(), make_model(), shard(make_model())
    # One process has a batch more than the other.
    pieces = [(ids[i : i + 4], labels[i : i + 4]) for i in range(0, ROWS, 4)]
    with torch.no_grad():
        model(ids)  # leaves some weights gathered, until they are freed
    for name, choose in SUBSETS.items():
        subset = choose(model)
        assert subset.parts.keys() == choose(plain).parts.keys()
        alone = fit(plain, [(ids, labels)], choose(plain), keep_own)
        both = fit(model, pieces[rank::PROCESSES], subset, all_reduce)
        assert both.fingerprint == alone.fingerprint
        expected, got = meaning(alone, plain, ids), meaning(both, model, ids)
        for part, value in expected.items():
            yield f"weights.{name}.{part}", value, got[part]
        known, told = (
            smidgen.calibrate(both, each, [(ids, labels)], progress=False)
            for each in (plain, model)
        )
        expected, got = (
            smidgen.predict(each, plain, (ids,)).probs for each in (known, told)
        )
        yield f"weights.{name}.calibrated", expected, got
    assert all(type(p).__name__ == "DTensor" for p in model.parameters())
    assert type(model.head).__name__ == "FSDPLinear"


def fit_sharded_rows():
    """Pairs of what one process and two come to, whose loader repeats a row."""
    (ids, labels), model = make_data(), make_model()
    data, subset = TensorDataset(ids, labels), smidgen.select.sparse_kfac(model, percent=50)
    alone = fit(model, [(ids, labels)], subset, keep_own)
    wrapped = nn.parallel.DistributedDataParallel(make_model())
    loader = DataLoader(data, BATCH, sampler=DistributedSampler(data))
    assert sum(len(batch[0]) for batch in loader) * PROCESSES > ROWS
    problem = smidgen.Problem(wrapped, forward=lambda model, batch: model(batch[0]))
    chosen = smidgen.select.sparse_kfac(wrapped, percent=50)
    both = fit(problem, loader, chosen, all_reduce)
    yield "rows.rows", torch.tensor(alone.num_data), torch.tensor(both.num_data)
    for name, operator in alone.operators.items():
        yield f"rows.{name}", operator.dense(), both.operators[name].dense()


def collect_refusals():
    """What is said before any work, by what it is said to."""
    (ids, labels), model = make_data(), make_model()
    data, subset = TensorDataset(ids, labels), smidgen.select.last_layer(model)
    loader = DataLoader(data, BATCH, sampler=DistributedSampler(data))
    posterior = fit(model, [(ids, labels)], subset, keep_own)
    split = torch.distributed.tensor.parallel.parallelize_module(
        make_model(),
        init_device_mesh("cpu", (PROCESSES,)),
        {"head": torch.distributed.tensor.parallel.ColwiseParallel()},
    )
    calls = {
        "fit": lambda: fit(model, loader, subset, None),
        "many": lambda: smidgen.fit.laplace_many(model, loader, {1: subset}),
        "calibrate": lambda: smidgen.calibrate(posterior, model, loader),
        "select": lambda: smidgen.select.scores.squared_gradient(model, loader),
        "parallel": lambda: fit(split, [(ids, labels)], subset, keep_own),
    }
    for name, call in calls.items():
        try:
            call()
        except (ArgumentError, StructureError) as error:
            yield name, str(error)


def main(rank, folder):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=PROCESSES
    )
    found = {}
    for name, expected, got in (*fit_sharded_weights(rank), *fit_sharded_rows()):
        found |= {f"{name}.expected": expected, f"{name}.got": got}
    tensors = {name: value.double().contiguous() for name, value in found.items()}
    save_file(tensors, Path(folder) / f"{rank}.safetensors", dict(collect_refusals()))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
