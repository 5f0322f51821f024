"""Saving and loading: whole or not at all, checked when read."""

from smidgen.posterior.store.folder import SCHEMA, refuse_taken_posterior
from smidgen.posterior.store.saving import load, save

__all__ = ["SCHEMA", "load", "refuse_taken_posterior", "save"]
