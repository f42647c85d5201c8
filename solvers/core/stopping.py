"""When a run ends, and the reason it reports."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from numbers import Integral, Real
from typing import Any

from topline.solvers.errors import InvalidProblemError


class Status(Enum):
    """How a run ended.

    Examples
    --------
    >>> from topline import Status
    >>> Status("solved") is Status.SOLVED
    True
    """

    #: The relative gap is at most tol; where the loss is not convex, |grad P(W)| / |grad P(0)| is.
    SOLVED = "solved"
    #: The budget of passes was used up first.
    MAX_PASSES = "max_passes"
    #: The time limit was reached first.
    TIME_LIMIT = "time_limit"
    #: A callback returned False.
    INTERRUPTED = "interrupted"
    #: No step improves the dual any more at the working precision.
    NO_PROGRESS = "no_progress"
    #: NaN or infinity appeared in the iterates.
    NONFINITE = "nonfinite"


#: Smallest relative gap that float64 can tell from rounding; float32 is abandoned long before.
FINEST_TOL = 1e-14


@dataclass(frozen=True)
class StoppingCriteria:
    """Bounds of a run.

    Attributes
    ----------
    tol : relative gap to reach, at least 1e-14, the resolution of float64 sums; where the loss is not convex,
        |grad P(W)| / |grad P(0)|.
    max_passes : passes over the examples, over all resumptions, that the rounds do not exceed; the final
        certificate takes one or two more.
    time_limit : seconds of this call, None for no limit; sweeps stop at it, and no pass that measures W
        starts after it.

    Raises InvalidProblemError for a value that is not positive, or a tol finer than float64 resolves.

    Examples
    --------
    >>> from topline import StoppingCriteria
    >>> StoppingCriteria(tol=1e-4, time_limit=60.0).max_passes
    1000
    """

    tol: float = 1e-3
    max_passes: int = 1000
    time_limit: float | None = None

    def __post_init__(self) -> None:
        tol: Any = self.tol
        if not (isinstance(tol, Real) and 0.0 < float(tol) < math.inf):
            raise InvalidProblemError(f"tol is {tol!r}; give a positive number")
        if float(tol) < FINEST_TOL:
            raise InvalidProblemError(
                f"tol is {tol!r}, which float64 does not resolve; give at least {FINEST_TOL:g}"
            )
        passes: Any = self.max_passes
        if isinstance(passes, bool) or not isinstance(passes, Integral) or int(passes) < 1:
            raise InvalidProblemError(f"max_passes is {passes!r}; give a whole number of at least 1")
        limit: Any = self.time_limit
        if limit is not None and not (isinstance(limit, Real) and float(limit) > 0.0):
            raise InvalidProblemError(f"time_limit is {limit!r}; give a positive number of seconds or None")
