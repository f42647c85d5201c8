"""How a job reports its progress: a terminal, a flow's artifacts, a test, or nobody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Progress(Protocol):
    """A watcher of a job.  Its methods return at once, never raise and are called from one thread."""

    def begin(self, stage: str, total: int | None = None, unit: str = "") -> None:
        """Begin the stage `stage` of `total` units (None where that is not known); ends the one before."""

    def advance(self, amount: int = 1) -> None:
        """Count `amount` more units of the stage as done."""

    def note(self, facts: Mapping[str, Any]) -> None:
        """Show facts of the moment.

        A round of training gives its history record (gap, primal, dual, ...) and under "left" the
        `TimeLeft` to the tolerance, None where that is not known; from the first look at held-out rows on
        "held_out" is the share of them that is right, of "held_out_rows" rows of "held_out_split".
        """


def begin(progress: Progress | None, stage: str, total: int | None = None, unit: str = "") -> None:
    """Begin a stage, if somebody watches."""
    if progress is not None:
        progress.begin(stage, total, unit)


def advance(progress: Progress | None, amount: int = 1) -> None:
    """Count units of the stage, if somebody watches."""
    if progress is not None:
        progress.advance(amount)
