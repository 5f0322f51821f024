"""Modules without a test file of their own, and the tests that cover them."""

COVERED_ELSEWHERE: dict[str, str] = {}
