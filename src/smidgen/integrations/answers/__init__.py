"""Language models that choose among answers: prompts, choices, and the small head they need."""

from smidgen.integrations.answers.answer_model import AnswerModel
from smidgen.integrations.answers.asking import make_answer_problem
from smidgen.integrations.answers.loader import make_answer_loader
from smidgen.integrations.answers.template import Question, read_prompts

__all__ = [
    "AnswerModel",
    "Question",
    "make_answer_loader",
    "make_answer_problem",
    "read_prompts",
]
