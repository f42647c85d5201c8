"""Counts with their nouns, for messages."""

from __future__ import annotations


def how_many(number: float, what: str, digits: str = "") -> str:
    """Return a number formatted with `digits`, and the plural `what`, or its singular for 1.

    Examples
    --------
    >>> from topline.solvers.counts import how_many
    >>> how_many(1, "passes"), how_many(1234, "rows"), how_many(2.5, "passes", ".5g")
    ('1 pass', '1,234 rows', '2.5 passes')
    """
    text = f"{number:,{digits}}"
    return f"{text} {singular(what) if text == '1' else what}"


def singular(what: str) -> str:
    """Return the singular of a regular plural such as rows or classes."""
    return what.removesuffix("es" if what.endswith("sses") else "s")
