"""`Problem`: a model, how to read its batches, and what its outputs mean."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Self, TypeVar

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError, DataError, DivergedError
from smidgen.outputs.batches import (
    TARGET_KEYS,
    batch_mask,
    batch_targets,
    check_batches,
    find_inputs,
    in_batch,
    model_outputs,
    move_batch,
    refuse_not_finite,
    require_examples,
)
from smidgen.outputs.likelihood import Bernoulli, Categorical, Gaussian, Likelihood
from smidgen.outputs.likelihood.base import has_target
from smidgen.runtime.guard import preserve_random_state, require_runs, set_modes
from smidgen.runtime.keeping.shadows import lend_shadow
from smidgen.runtime.keeping.structure import Structure, unwrap
from smidgen.runtime.keeping.swap import swap_tensors
from smidgen.runtime.shadow import (
    find_origin,
    is_shadow,
    shadow_values,
)
from smidgen.runtime.storage.offload import find_working_device
from smidgen.runtime.storage.quantised import is_quantised, refuse_cuts
from smidgen.types import Batch, Forward

Result = TypeVar("Result")

_DIVERGED = (
    "the training {} not finite. Lower learning_rate, or check the data of this batch."
)


@dataclass(frozen=True, eq=False)
class Problem:
    """Everything a pass over data needs to know; fit and predict take it in place of a model.

    Args:
        model: A trained model; never changed.
        likelihood: What its outputs mean; by default inferred from the first batch.
        forward: Computes outputs (B, C) from the model and a batch.
        targets: Finds the targets of a batch, or None.
        mask: Finds which positions (B, T) are not padding, or None.
    """

    model: nn.Module
    likelihood: Likelihood | None = None
    forward: Forward = model_outputs
    targets: Callable[[Batch], Tensor | None] = batch_targets
    mask: Callable[[Batch], Tensor | None] = batch_mask

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise ArgumentError(
                f"model must be a torch.nn.Module, got {type(self.model).__name__}. Load it "
                "first."
            )
        object.__setattr__(self, "model", unwrap(self.model))
        first = next(self.model.parameters(), None)
        if first is not None and first.is_inference():
            raise ArgumentError(
                "model must be made outside torch.inference_mode(), got one whose weights "
                "autograd cannot use. Load it outside, or take a copy.deepcopy of it there."
            )
        if not isinstance(self.likelihood, Likelihood | None):
            raise ArgumentError(
                f"likelihood must be a smidgen likelihood, got {self.likelihood!r}. Pass "
                "Categorical(C), Bernoulli(C) or Gaussian(C) for C outputs, or leave it out."
            )

    def on_shadow(self, *, dropout: bool = False) -> Self:
        """Pose the problem on a shadow of its model, in evaluation mode, that passes may change."""
        # With `dropout` it trains, except layers with running statistics.
        shadowed = self._with_shadow()
        set_modes(shadowed.model, dropout=dropout)
        return shadowed

    @contextmanager
    def on_lent_shadow(self) -> Iterator[Self]:
        """Pose the problem on a shadow that is given back, for passes that replace no weights."""
        # Made anew only where the model, or the shadow last given back, has changed.
        with ExitStack() as stack:
            model, forward = stack.enter_context(lend_shadow(self.model, self.forward))
            if find_origin(model).structure is None:
                # No structure is kept of a model with tensors of other classes.
                stack.enter_context(refuse_cuts(model))
            yield (
                self if model is self.model else replace(self, model=model, forward=forward)
            )

    def _with_shadow(self) -> Self:
        # A forward that knows the model by a name of its own gets the shadow under it.
        model, forward = shadow_values(self.model, self.model, self.forward)
        return replace(self, model=model, forward=forward)

    def outputs(self, batch: Batch, replaced: Mapping[str, Tensor] | None = None) -> Tensor:
        """Compute outputs, (B, C) or (B, T, C), on detached weights: no weight gets a gradient."""
        # `replaced` are other values of parameters and buffers, by name.
        first = next(iter((replaced or {}).values()), None)
        device = self.device if first is None else first.device
        return self._run(batch, device, replaced or {}, lambda outputs: outputs)

    def within(
        self,
        batch: Batch,
        replaced: Mapping[str, Tensor],
        work: Callable[[Tensor], Result],
    ) -> Result:
        """Call `work` on the outputs, (R, C), while other parameters are in place."""
        # A backward pass belongs here: a network that recomputes activations in it (gradient
        # checkpointing) must find the same parameters.
        return self._run(
            batch, self.device, replaced, lambda rows: work(rows.flatten(0, -2))
        )

    def _run(
        self,
        batch: Batch,
        device: torch.device,
        replaced: Mapping[str, Tensor],
        work: Callable[[Tensor], Result],
    ) -> Result:
        if not is_shadow(self.model):
            return self._with_shadow()._run(batch, device, replaced, work)
        moved = move_batch(batch, device)
        with swap_tensors(self.model, replaced):
            with require_runs(find_origin(self.model), lambda: self.depends_on(batch)):
                outputs = self.forward(self.model, moved)
            return work(_as_rows(outputs))

    @torch.no_grad()
    def depends_on(self, batch: Batch, names: Collection[str] | None = None) -> bool:
        """Whether some of these parameters, or any at all, affect the outputs of a batch."""
        nothing = {
            name: torch.full((), torch.nan, dtype=p.dtype, device=device).expand(p.shape)
            for name, p in self.model.named_parameters()
            if not is_quantised(p) and (names is None or name in names)
            for device in [self.device if p.is_meta else p.device]
        }
        try:
            with swap_tensors(self.model, nothing):
                outputs = self.forward(self.model, move_batch(batch, self.device))
        except Exception:
            # A network that fails on NaN has seen it.
            return True
        return not bool(torch.isfinite(outputs).all())

    def training_outputs(self, batch: Batch) -> Tensor:
        """Compute outputs (R, C) on the model's own weights, for training them."""
        outputs = _as_rows(self.forward(self.model, move_batch(batch, self.device)))
        return outputs.flatten(0, -2)

    @contextmanager
    def reading(self, batch: Batch, number: int) -> Iterator[None]:
        """Refuse inputs that are not finite; note the batch's number in errors of its data."""
        with in_batch(number):
            # A forward of the caller's own may look at all of it.
            inputs = find_inputs(batch) if self.forward is model_outputs else batch
            refuse_not_finite(inputs, batch, self.targets)
            yield

    def settle(
        self, batches: Iterable[Batch]
    ) -> tuple[SettledProblem, Batch, Iterator[Batch]]:
        """Infer the likelihood, unless known, from the first batch; return that and all batches."""
        first, read_once = self.read_first(batches)
        if self.likelihood is not None:
            return self.with_likelihood(self.likelihood), first, read_once
        # In no mode of training, which might draw or refuse a single example.
        with in_batch(1), torch.no_grad(), preserve_random_state(self.model):
            return self.settle_by(first, self.on_shadow().outputs(first)), first, read_once

    def read_first(self, batches: Iterable[Batch]) -> tuple[Batch, Iterator[Batch]]:
        """Read the first batch and refuse it if no pass could use it; return it, and all."""
        check_batches(batches)
        iterator = iter(batches)
        try:
            first = next(iterator)
        except StopIteration:
            raise DataError(
                "the data loader yielded no batch. Check the dataset's length and "
                "drop_last."
            ) from None
        with self.reading(first, 1):
            self._refuse_unshifted(first)
        return first, chain([first], iterator)

    def settle_by(self, batch: Batch, outputs: Tensor) -> SettledProblem:
        """Infer the likelihood, unless known, from the outputs of a batch."""
        targets, known = self.targets(batch), self.likelihood
        return self.with_likelihood(
            known or _infer_likelihood(self.model, outputs, targets)
        )

    def with_likelihood(self, likelihood: Likelihood) -> SettledProblem:
        """Say what the outputs mean."""
        return SettledProblem(self.model, likelihood, self.forward, self.targets, self.mask)

    def _refuse_unshifted(self, batch: Batch) -> None:
        """Refuse a language model whose label t is the target of output t − 1."""
        name = type(self.model).__name__
        causal = name.endswith(("ForCausalLM", "LMHeadModel"))
        if causal and self.forward is model_outputs and self.targets(batch) is not None:
            raise DataError(
                f"{name} predicts the next token, so its labels must be shifted against "
                "its outputs. Pass smidgen.integrations.causal.make_causal_problem(model) in "
                "place of the model, here and wherever it is fitted, tuned or predicted."
            )

    @property
    def structure(self) -> Structure | None:
        """Of a problem on a lent shadow, the model's structure, if it can be kept."""
        return find_origin(self.model).structure if is_shadow(self.model) else None

    @property
    def device(self) -> torch.device:
        """Where the model's first parameter is when it is used."""
        return find_working_device(self.model)

    @property
    def working_type(self) -> torch.dtype:
        """The type predictions are computed in: the model's, but at least fp32."""
        double = any(p.dtype == torch.float64 for p in self.model.parameters())
        return torch.float64 if double else torch.float32


@dataclass(frozen=True, eq=False)
class SettledProblem(Problem):
    """A problem whose likelihood is known; `Problem.settle` makes one."""

    likelihood: Likelihood

    def read(self, batch: Batch, outputs: Tensor) -> tuple[Tensor | None, Tensor]:
        """Check targets against outputs (R, C); return them or None, and rows with one, (R,)."""
        require_examples(outputs)
        self.likelihood.check_outputs(outputs)
        all_rows = torch.ones(len(outputs), dtype=torch.bool, device=outputs.device)
        targets = self.targets(batch)
        if targets is None:
            return None, all_rows
        if targets.dim() > 1 and targets.shape[:2].numel() == len(outputs):
            targets = targets.flatten(0, 1)
        if len(targets) != len(outputs):
            raise DataError(
                f"targets must be as many as the outputs, {len(outputs)}, got "
                f"{len(targets)}. Pass Problem(model, targets=...) that finds them."
            )
        targets = targets.to(outputs.device)
        # The target of a regression may really be −100.
        real = isinstance(self.likelihood, Gaussian)
        labelled = all_rows if real else has_target(targets)
        checked = self.likelihood.check_targets(outputs[labelled], targets[labelled])
        # Rows without a target get a harmless one, so that rows still line up.
        aligned = checked.new_zeros(len(outputs), *checked.shape[1:])
        aligned[labelled] = checked
        return aligned, labelled

    def require_labels(self, batch: Batch, use: str = "training") -> None:
        """Refuse a batch without labels, before anything is done with it."""
        if self.targets(batch) is None:
            raise DataError(
                f"{use} needs labels, and a batch has none. Name them "
                f"{' or '.join(TARGET_KEYS[:2])}, or pass Problem(model, targets=...)."
            )

    def mean_nll(self, batch: Batch, outputs: Tensor) -> tuple[Tensor, int] | None:
        """Mean NLL of a batch's labelled rows, for autograd, and their number; None without any."""
        if not torch.isfinite(outputs.detach()).all():
            raise DivergedError(_DIVERGED.format("outputs are"))
        self.require_labels(batch)
        targets, labelled = self.read(batch, outputs.detach())
        assert targets is not None
        rows = int(labelled.sum())
        if not rows:
            return None
        loss = -self.likelihood.log_prob(outputs[labelled], targets[labelled]).mean()
        if not torch.isfinite(loss):
            raise DivergedError(_DIVERGED.format("loss is"))
        return loss, rows


def as_problem(model: nn.Module | Problem) -> Problem:
    """Wrap a model as a problem that reads batches in the default way."""
    if isinstance(model, Problem):
        return model
    if isinstance(model, nn.Module):
        return Problem(model)
    raise ArgumentError(
        f"model must be a torch.nn.Module or a smidgen.Problem, got {type(model).__name__}. "
        "Load it first."
    )


def declared_likelihood(model: nn.Module) -> Likelihood | None:
    """What the outputs of a classifier or regression of Hugging Face mean, by its config."""
    config = getattr(model, "config", None)
    count, kind = getattr(config, "num_labels", None), getattr(config, "problem_type", None)
    if not isinstance(count, int) or "ForSequence" not in type(model).__name__:
        return None
    if kind == "regression" or count == 1:
        return Gaussian(count)
    return Bernoulli(count) if kind == "multi_label_classification" else Categorical(count)


def _infer_likelihood(
    model: nn.Module, outputs: Tensor, targets: Tensor | None
) -> Likelihood:
    """Infer the likelihood as Hugging Face does; refuse where that leaves it open."""
    tokens = targets is not None and targets.shape == outputs.shape[:2]
    if outputs.dim() != 2 and not (outputs.dim() == 3 and tokens):
        raise DataError(
            "outputs must have shape (batch, classes), or (batch, tokens, classes) with a "
            f"label for each token, got {tuple(outputs.shape)}. Pass Problem(model, "
            "forward=...) that returns one row for each example."
        )
    count = outputs.shape[-1]
    config = getattr(model, "config", None)
    kind = getattr(config, "problem_type", None)
    floating = targets is not None and targets.is_floating_point()
    if kind == "multi_label_classification":
        return Bernoulli(count)
    if kind == "regression" or (hasattr(config, "num_labels") and count == 1):
        return Gaussian(count)
    if hasattr(config, "num_labels"):
        return Bernoulli(count) if floating else Categorical(count)
    if floating or count == 1:
        if targets is None or bool(((targets == 0) | (targets == 1)).all()):
            raise ArgumentError(
                f"likelihood cannot be inferred from {count} outputs and these targets. Pass "
                f"Problem(model, smidgen.Bernoulli({count})) or smidgen.Gaussian({count})."
            )
        return Gaussian(count)
    return Categorical(count)


def _as_rows(outputs: Tensor) -> Tensor:
    """Give every example a row, in at least fp32: a bf16 softmax is too coarse."""
    if outputs.dim() == 1:
        outputs = outputs[:, None]
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))
