"""Numbers as a report shows them; a dash where there is none."""

from __future__ import annotations


def number(value: float | None) -> str:
    """Six significant digits, or a dash."""
    return "\u2013" if value is None else f"{value:.6g}"


def percent(value: float | None) -> str:
    """One decimal, or a dash."""
    return "\u2013" if value is None else f"{value:.1%}"


def count(value: int | None) -> str:
    """Thousands apart, or a dash."""
    return "\u2013" if value is None else f"{value:,}"


def duration(value: float | None) -> str:
    """Seconds, or minutes and hours where they are many."""
    if value is None:
        return "\u2013"
    if value < 120:
        return f"{value:.1f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def amount(size: float | None) -> str:
    """Bytes in the unit that leaves one to three digits before the point."""
    if size is None:
        return "\u2013"
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} GB" if size < 1000 else f"{size / 1000:,.3g} TB"
