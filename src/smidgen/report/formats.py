"""How numbers are written: one function for each kind of number."""

from __future__ import annotations

from math import floor, log10

MINUS = "\u2212"
THIN = "\u202f"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def format_percent(value: float) -> str:
    """Format a fraction as a percentage to one decimal: `83.1 %`."""
    return f"{format_decimals(100 * value, 1)}{THIN}%"


def format_share(value: float) -> str:
    """Format a share in whole percent: `71 %`; what is not all or none never looks so."""
    whole = round(100 * value)
    misleads = (whole == 100 and value < 1) or (whole == 0 and value > 0)
    return format_percent(value) if misleads else f"{whole}{THIN}%"


def format_fraction(value: float) -> str:
    """Format a fraction of any size as a percentage: `0.0119 %`, `100 %`."""
    return f"{format_significant(100 * value)}{THIN}%"


def format_nll(value: float) -> str:
    """Format a negative log likelihood, a Brier score or an RMSE: `0.3821`."""
    return format_decimals(value, 4)


def format_rate(value: float) -> str:
    """Format a calibration error, an AUROC or a correlation: `0.047`."""
    return format_decimals(value, 3)


def format_signed(value: float, places: int = 4) -> str:
    """Format a difference with its sign: `+0.0012`."""
    text = format_decimals(value, places)
    return text if value <= 0 else f"+{text}"


def format_count(value: float) -> str:
    """Format a count with thousands separators: `1,234,567`."""
    return f"{round(value):,}".replace("-", MINUS)


def format_seconds(value: float) -> str:
    """Format a time: `0.3 s`, `1,234 s`."""
    return f"{value:,.{1 if value < 100 else 0}f}{THIN}s"


def format_ratio(value: float) -> str:
    """Format a ratio of times: `1.08×`."""
    return f"{value:.2f}×"


def format_significant(value: float) -> str:
    """Format a number of any size to three digits: `12.3`, `4.56×10⁻⁵`."""
    if value == 0:
        return "0"
    exponent = floor(log10(abs(value)))
    if exponent < -3 or exponent > 5:
        power = str(exponent).translate(_SUPERSCRIPT)
        return f"{format_decimals(value / 10.0**exponent, 2)}×10{power}"
    places = max(0, 2 - exponent)
    return f"{value:,.{places}f}".replace("-", MINUS)


def format_decimals(value: float, places: int) -> str:
    """Format a number with a true minus sign."""
    return f"{value:.{places}f}".replace("-", MINUS)


def shorten_text(text: str, longest: int) -> str:
    """Cut a text that is too long, with an ellipsis at its end."""
    return text if len(text) <= longest else text[: longest - 1] + "…"
