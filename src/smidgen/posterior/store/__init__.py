"""Saved posteriors: folders that are whole or not there at all."""

from smidgen.posterior.store.folder import SCHEMA, load, refuse_taken_posterior, save

__all__ = ["SCHEMA", "load", "refuse_taken_posterior", "save"]
