"""Saved posteriors: folders that are whole or not there at all."""

from smidgen.store.folder import SCHEMA, check_free, load, save

__all__ = ["SCHEMA", "check_free", "load", "save"]
