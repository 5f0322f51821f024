"""Keywords of a fit, of which some belong into its settings."""

from dataclasses import fields


def grouped(kind, **keywords):
    """Put those keywords that a settings class has into a value of it."""
    names = {field.name for field in fields(kind)}
    # `seed` of drawn labels is a setting, of all else an argument.
    inside = {name: value for name, value in keywords.items() if name in names}
    others = {name: value for name, value in keywords.items() if name not in names}
    return {**others, "settings": kind(**inside)}
