"""Ramping studies: every size of a subset from one pass."""
