"""What a table says on the whole: how many figures are better than the paper's, and how many worse."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.reproduce.table import WITHIN, Better, Figure


@dataclass(frozen=True)
class Score:
    """How many figures stand beside the paper's, and how many of ours are the better or the worse ones.

    Attributes
    ----------
    compared : figures of the paper's own data.
    wins, losses : ours better, and worse, by any amount.
    clear_wins, clear_losses : those of them by more than `WITHIN` standard errors.
    neutral : figures of which neither a higher nor a lower one is better.
    elsewhere : figures beside the paper's of other data or of another protocol, which do not count.
    """

    compared: int
    wins: int
    losses: int
    clear_wins: int
    clear_losses: int
    neutral: int
    elsewhere: int

    @classmethod
    def of(cls, figures: Sequence[Figure]) -> Score:
        """Count figures."""
        beside = [figure for figure in figures if figure.difference is not None]
        counted = [figure for figure in beside if figure.counts]
        gains = [_gain(figure.difference, figure.better) for figure in counted]
        errors = [_gain(figure.standard_errors, figure.better) for figure in counted]
        return cls(
            compared=len(counted),
            wins=sum(gain > 0.0 for gain in gains),
            losses=sum(gain < 0.0 for gain in gains),
            clear_wins=sum(error > WITHIN for error in errors),
            clear_losses=sum(error < -WITHIN for error in errors),
            neutral=sum(not figure.better for figure in counted),
            elsewhere=len(beside) - len(counted),
        )

    def __str__(self) -> str:
        """Say it in a sentence."""
        if not self.compared:
            return "no figure of the paper's own data to compare with"
        text = (
            f"{self.compared} figures beside the paper's: ours better in {self.wins}, worse in {self.losses};"
            f" by more than {WITHIN:g} standard errors better in {self.clear_wins}, worse in"
            f" {self.clear_losses}"
        )
        if self.neutral:
            text += f"; neither higher nor lower is better in {self.neutral}"
        if self.elsewhere:
            text += f"; {self.elsewhere} more are of other data or another protocol and do not count"
        return text


def _gain(value: float | None, better: Better) -> float:
    """Give a difference with the sign of a gain; 0 where there is none."""
    return {"higher": 1.0, "lower": -1.0, "": 0.0}[better] * (value or 0.0)


def verdict(figure: Figure) -> str:
    """Say whether a difference is within the spread, which note explains it, or that it does not count."""
    if figure.difference is not None and not figure.counts:
        return f"not counted, note {figure.note}" if figure.note else "not counted"
    if figure.difference is None or figure.within:
        return "within" if figure.within else ""
    return f"note {figure.note}" if figure.note else "beyond the spread" if figure.within is False else ""


def printed(section: str) -> dict[str, Any]:
    """Return the rows of a section such as "thesis.letter", by name: tuples of figures, or rows of them."""
    found = _whole()
    for name in section.split("."):
        found = found[name]
    return {row: _fixed(figures) for row, figures in found.items()}


@cache
def _whole() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "printed.toml").read_text(encoding="utf-8"))


def _fixed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _fixed(part) for name, part in value.items()}
    return tuple(_fixed(part) for part in value) if isinstance(value, list) else value
