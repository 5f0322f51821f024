"""Callbacks for Hugging Face's `Trainer`; imported by whoever asks for them."""

from importlib.util import find_spec

from smidgen.errors import how_to_install

if find_spec("transformers") is None:
    raise ImportError(
        "smidgen.trainer needs the package 'transformers', which is not installed: "
        f"{how_to_install('hf')}."
    )

from smidgen.trainer.bayes import BayesCallback
from smidgen.trainer.swag import SwagCallback

__all__ = ["BayesCallback", "SwagCallback"]
