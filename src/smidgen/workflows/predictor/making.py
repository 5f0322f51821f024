"""`make_predictor`: from a model of one's own and its posterior to a `Predictor`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from smidgen.decide import Rules
from smidgen.errors import ArgumentError, require_kind
from smidgen.integrations.reading.task_note import TaskNote
from smidgen.integrations.text_length import count_positions
from smidgen.outputs.likelihood import Categorical, Gaussian
from smidgen.outputs.problem import Problem, as_problem
from smidgen.posterior.base import Posterior
from smidgen.workflows.predictor.predictor import Predictor
from smidgen.workflows.run.task_model import TaskModel


def make_predictor(
    posterior: Posterior,
    model: nn.Module | Problem,
    task: TaskNote,
    *,
    rules: Rules | None = None,
    tokenizer: Any = None,
) -> Predictor:
    """Put a model of one's own, its posterior and its rules together, to be called with rows.

    Args:
        posterior: A posterior of the model, as `smidgen.bayesify` makes.
        model: The model, or its `Problem`: a text classifier of transformers (with an adapter
            of PEFT or without), or any network of tables or images.
        task: What a row is, from `smidgen.describe_texts`, `describe_table` or
            `describe_images`.
        rules: The rules of the posterior, from `smidgen.make_rules`.
        tokenizer: The tokenizer of a text model.

    Returns:
        The predictor. `smidgen.save_predictor` writes it to a folder.

    Raises:
        ArgumentError: If these do not go together.
    """
    require_kind("posterior", posterior, Posterior, "The order is (posterior, model, task)")
    require_kind("task", task, TaskNote, "Make it with smidgen.describe_texts, or the like")
    rules = Rules() if rules is None else rules
    require_kind("rules", rules, Rules, "Make them with smidgen.make_rules")
    problem = as_problem(model)
    posterior.require(problem.model)
    _check_outputs(posterior, task)
    if task.kind == "text":
        _check_text_model(problem.model, task, tokenizer)
        most = count_positions(problem.model)
        if most is not None and task.max_length is not None:
            task = replace(task, max_length=min(task.max_length, most))
    elif tokenizer is not None:
        raise ArgumentError(
            f"tokenizer must be left out for {task.kind}, got "
            f"{type(tokenizer).__name__}. It is for texts."
        )
    return Predictor(TaskModel(problem, task, tokenizer), posterior, rules)


def _check_outputs(posterior: Posterior, task: TaskNote) -> None:
    likelihood = posterior.likelihood
    if isinstance(likelihood, Gaussian) and likelihood.outputs == 1:
        if task.classes is not None:
            raise ArgumentError(
                "classes must be None for a regression, got "
                f"{', '.join(task.classes)}. Describe the task again."
            )
        return
    if not isinstance(likelihood, Categorical):
        raise ArgumentError(
            f"posterior must be of a classifier or of one number, got {likelihood.kind} with "
            f"{likelihood.outputs} outputs. Use smidgen.predict."
        )
    given = len(task.classes or ())
    if given != likelihood.outputs:
        raise ArgumentError(
            f"classes must be {likelihood.outputs} names, as the model has outputs, got "
            f"{given}. Name every class once, in the order of the class numbers."
        )


def _check_text_model(model: nn.Module, task: TaskNote, tokenizer: Any) -> None:
    if not callable(tokenizer):
        raise ArgumentError(
            f"tokenizer must be the text model's, got {type(tokenizer).__name__}. Pass "
            "tokenizer=AutoTokenizer.from_pretrained(...)."
        )
    names = getattr(getattr(model, "config", None), "id2label", None) or {}
    stored = tuple(names[number] for number in sorted(names))
    # Models that were never told have LABEL_0 and so on.
    if task.classes and stored and stored[0] != "LABEL_0" and stored != task.classes:
        raise ArgumentError(
            f"classes must be those of the model's config, {', '.join(stored)}, got "
            f"{', '.join(task.classes)}. Give them in its order, or change its id2label."
        )
