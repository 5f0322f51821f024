"""The plain models that sparse networks are trained from, beside the data they read."""

from smidgen.sparse.plain_networks import PlainNetwork, Standardise, mlp, small_resnet

__all__ = ["PlainNetwork", "Standardise", "mlp", "small_resnet"]
