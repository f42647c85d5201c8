"""The blocks H_j class by class, where every class is a problem of its own and H_j its whole Hessian.

With it steps are those of Newton's method (`class_metric` says what the H_j are).  All rows are summed but
those that together add less than lam, and steps along which the Hessian was another one are let go.  The
classes that are not done take turns, so that their H_j cost as much as the passes in between.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from topline.solvers.core.objective import relative_gap
from topline.solvers.core.problem import Problem
from topline.solvers.methods.base import Measurement
from topline.solvers.methods.quasi_newton.class_metric import (
    INVERSE,
    SUM,
    inverses_of,
    passes_to_go,
)
from topline.solvers.methods.quasi_newton.memory import ClassBlocks, LbfgsMemory, Turns
from topline.solvers.methods.quasi_newton.row_metric import wants_classes
from topline.solvers.typing import Float64Array


def with_renewed(
    problem: Problem,
    memory: LbfgsMemory,
    measured: Measurement,
    off: NDArray[np.bool_],
    waits: NDArray[np.bool_],
) -> tuple[ClassBlocks, NDArray[np.bool_]]:
    """Return the blocks with the H_j of those classes that set `off` from where they were summed, and which.

    A class that `waits` for a step that is good enough is to have its own there.
    """
    blocks, stats, none = memory.classes, measured.stats, np.zeros_like(off)
    if not wants_classes(problem):
        return blocks, none
    turns, asked = blocks.turns, blocks.asked
    if turns is None:
        gaps = _gaps(problem, measured)
        turns = Turns(np.zeros_like(gaps), gaps)
    blocks = replace(blocks, turns=turns, asked=None)
    if asked is None or stats.moments is None or stats.openness is None:
        return blocks, none
    here = off & np.isfinite(asked)
    if (waits & np.isfinite(asked)).any():
        blocks = replace(blocks, asked=np.where(waits, asked, math.inf))
    if not here.any():
        return blocks, none
    passes = np.where(here, float(measured.before.passes), turns.passes)
    blocks = replace(blocks, turns=Turns(passes, np.where(here, _gaps(problem, measured), turns.gaps)))
    inverses = _merged(problem, memory, stats.openness, stats.moments, here)
    return (blocks, none) if inverses is None else (replace(blocks, inverses=inverses), here)


def _merged(
    problem: Problem,
    memory: LbfgsMemory,
    openness: Float64Array,
    moments: Float64Array,
    here: NDArray[np.bool_],
) -> Float64Array | None:
    """Return the inverses with those of some classes anew, others by C alone where there were none."""
    C, others = memory.rows.moments, memory.classes.inverses
    if C is None:
        return None
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


def with_turns(
    problem: Problem, memory: LbfgsMemory, measured: Measurement, off: NDArray[np.bool_]
) -> ClassBlocks:
    """Return the blocks with what the next evaluation is asked for: the H_j of classes whose turn it is.

    That pays for a class where the fall of its gap since its H_j was found says that many passes are to come.
    """
    blocks, C, turns = memory.classes, memory.rows.moments, memory.classes.turns
    if turns is None or C is None:
        return blocks
    since, gaps = measured.before.passes - turns.passes, _gaps(problem, measured)
    tol = measured.tol / problem.m
    cost = (SUM * problem.d + INVERSE * problem.d**2 / problem.n) / problem.m
    numbers = zip(since.tolist(), turns.gaps.tolist(), gaps.tolist(), strict=True)
    to_go = np.array([passes_to_go(*of_class, tol) for of_class in numbers])
    pays = off & (since >= cost * np.count_nonzero(off & (gaps > tol))) & (to_go >= cost)
    if not pays.any():
        return blocks
    # With (1/n) sum_i x_i x_i^T at most its trace, what is left out is at most lam.
    least = problem.lam / max(float(np.trace(C)), sys.float_info.min)
    return replace(blocks, asked=np.where(pays, least, math.inf if blocks.asked is None else blocks.asked))


def _gaps(problem: Problem, measured: Measurement) -> Float64Array:
    """Return what every class adds to the relative gap."""
    best = measured.before.recalled(LbfgsMemory).best
    steepness = np.full(problem.m, math.inf) if best is None else best.steepness
    relative = [relative_gap(gap, measured.primal) for gap in (steepness / (2.0 * problem.lam)).tolist()]
    return np.maximum(relative, sys.float_info.epsilon)
