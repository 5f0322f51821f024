"""One call from a trained model to a calibrated posterior: cheap things first, and an account."""

from smidgen.workflows.bayesify.one_call import bayesify
from smidgen.workflows.bayesify.settings import BayesifySettings

__all__ = ["BayesifySettings", "bayesify"]
