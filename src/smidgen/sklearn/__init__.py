"""smidgen as scikit-learn estimators; imported by whoever asks for it, and by nobody else."""

from importlib.util import find_spec

from smidgen.errors import how_to_install

if find_spec("sklearn") is None:
    raise ImportError(
        "smidgen.sklearn needs the package 'scikit-learn', which is not installed: "
        f"{how_to_install('sklearn')}."
    )

from smidgen.sklearn.tables import BayesClassifier, BayesRegressor
from smidgen.sklearn.texts import BayesTextClassifier

__all__ = ["BayesClassifier", "BayesRegressor", "BayesTextClassifier"]
