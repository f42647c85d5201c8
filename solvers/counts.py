"""Counts with their nouns, for messages."""

from __future__ import annotations


def how_many(number: float, what: str, digits: str = "") -> str:
    """Return a number, formatted with `digits`, and its noun: the plural `what`, or its singular for 1."""
    text = f"{number:,{digits}}"
    return f"{text} {singular(what) if text == '1' else what}"


def singular(what: str) -> str:
    """Return the singular of a regular plural such as rows or classes."""
    return what.removesuffix("es" if what.endswith("sses") else "s")
