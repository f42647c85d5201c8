"""A callback of `solve` that prints how far it is."""

from __future__ import annotations

import sys

from topline.solvers.core.state import IterationRecord, SolverState
from topline.solvers.counts import how_many


class PrintProgress:
    """Print a line for the first round of a run, and whenever the gap has halved since the line before.

    `solve` and the estimators have one where verbose=True; among `callbacks` it may stand beside functions of
    your own with the same arguments, of which one that returns False ends the run.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import MaxHinge, PrintProgress, solve
    >>> X, y = np.eye(3).repeat(4, axis=0), np.arange(3).repeat(4)
    >>> result = solve(X, y, MaxHinge(), lam=0.1, callbacks=[PrintProgress()])  # doctest: +ELLIPSIS
    2 passes, ... s: primal ..., dual ..., relative gap ...
    """

    def __init__(self) -> None:
        self._below: float | None = None
        self._round = -1

    def __call__(self, record: IterationRecord, state: SolverState) -> None:  # noqa: ARG002 - a callback
        """Print a line about the round, if it is worth one."""
        convex = record.stationarity is None
        left = record.relative_gap if record.stationarity is None else record.stationarity
        begins, self._round = record.round <= self._round, record.round
        if self._below is not None and not begins and not left <= self._below:
            return
        self._below = 0.5 * left
        bound = f", dual {record.dual:.6g}, relative gap {left:.1e}"
        sys.stdout.write(
            f"{how_many(record.passes, 'passes')}, {record.seconds:.1f} s: primal {record.primal:.6g}"
            + (bound if convex else f", gradient at {left:.1e} of its first size")
            + "\n"
        )
        sys.stdout.flush()
