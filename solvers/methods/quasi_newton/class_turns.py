"""The blocks H_j class by class, where every class is a problem of its own and H_j its whole Hessian.

With it steps are those of Newton's method (`class_metric` says what the H_j are).  All rows are summed but
those that together add less than lam, and steps along which the Hessian was another one are let go.  The
classes that are not done take turns, so that their H_j cost as much as the passes in between.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from topline.solvers.core.problem import Problem, relative_gap
from topline.solvers.methods.base import Measurement
from topline.solvers.methods.quasi_newton.best_parts import VALUES
from topline.solvers.methods.quasi_newton.class_metric import (
    CLASSES,
    INVERSE,
    SUM,
    inverses_of,
    passes_to_go,
)
from topline.solvers.methods.quasi_newton.row_metric import MOMENTS, wants_classes
from topline.solvers.typing import Float64Array

_INVERSES, _, _ASKED, _ = CLASSES
#: Name in `SolverState.memory` of the passes and the gaps at which each H_j was found, or the run began.
TURNS = "metric.turns"


def with_renewed(
    problem: Problem,
    memory: Mapping[str, Float64Array],
    measured: Measurement,
    off: NDArray[np.bool_],
    waits: NDArray[np.bool_],
) -> tuple[dict[str, Float64Array], NDArray[np.bool_]]:
    """Return the memory with the H_j of those classes that set `off` from where they were summed, and which.

    A class that `waits` for a step that is good enough is to have its own there.
    """
    known, stats = dict(memory), measured.stats
    none = np.zeros_like(off)
    if not wants_classes(problem):
        return known, none
    if TURNS not in memory:
        gaps = _gaps(problem, measured)
        known[TURNS] = np.array([np.zeros_like(gaps), gaps])
    asked = known.pop(_ASKED, None)
    if asked is None or stats.moments is None or stats.openness is None:
        return known, none
    here = off & np.isfinite(asked)
    if (waits & np.isfinite(asked)).any():
        known[_ASKED] = np.where(waits, asked, math.inf)
    if not here.any():
        return known, none
    now = np.array([np.full_like(asked, measured.before.passes), _gaps(problem, measured)])
    known[TURNS] = np.where(here, now, known[TURNS])
    inverses = _merged(problem, known, stats.openness, stats.moments, here)
    return (known, none) if inverses is None else ({**known, _INVERSES: inverses}, here)


def _merged(
    problem: Problem,
    memory: Mapping[str, Float64Array],
    openness: Float64Array,
    moments: Float64Array,
    here: NDArray[np.bool_],
) -> Float64Array | None:
    """Return the inverses with those of some classes anew, others by C alone where there were none."""
    C, others = memory[MOMENTS], memory.get(_INVERSES)
    some = inverses_of(problem, C, openness[here], moments[here], share=0.0)
    if here.all() or some is None:
        return some
    if others is None:
        others = inverses_of(problem, C, openness, np.zeros_like(moments), share=1.0)
        if others is None:
            return None
    inverses = np.array(np.broadcast_to(others, moments.shape))
    inverses[here] = some
    return inverses


def with_asked(
    problem: Problem, memory: dict[str, Float64Array], measured: Measurement, off: NDArray[np.bool_]
) -> dict[str, Float64Array]:
    """Return the memory with what the next evaluation is asked for: the H_j of classes whose turn it is.

    That pays for a class where the fall of its gap since its H_j was found says that many passes are to come.
    """
    if TURNS not in memory or MOMENTS not in memory:
        return memory
    found, gaps_then = memory[TURNS]
    since, gaps, tol = measured.before.passes - found, _gaps(problem, measured), measured.tol / problem.m
    cost = (SUM * problem.d + INVERSE * problem.d**2 / problem.n) / problem.m
    numbers = zip(since.tolist(), gaps_then.tolist(), gaps.tolist(), strict=True)
    to_go = np.array([passes_to_go(*of_class, tol) for of_class in numbers])
    pays = off & (since >= cost * np.count_nonzero(off & (gaps > tol))) & (to_go >= cost)
    if not pays.any():
        return memory
    # With (1/n) sum_i x_i x_i^T at most its trace, what is left out is at most lam.
    least = problem.lam / max(float(np.trace(memory[MOMENTS])), sys.float_info.min)
    return {**memory, _ASKED: np.where(pays, least, memory.get(_ASKED, math.inf))}


def _gaps(problem: Problem, measured: Measurement) -> Float64Array:
    """Return what every class adds to the relative gap."""
    gaps = measured.before.memory[VALUES][1] / (2.0 * problem.lam)
    relative = [relative_gap(gap, measured.primal) for gap in gaps.tolist()]
    return np.maximum(relative, sys.float_info.epsilon)
