"""The best that a run has seen, kept beside the iterate: weights by their P, a dual point by its D.

P and D may come from different rounds: their difference is a gap for any W and any dual point.  What is kept
lies in the memory of the state, so that a checkpoint has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from topline.solvers.core.dual_points import DualPoint, FoundAt, Summed
from topline.solvers.core.state import SolverState
from topline.solvers.typing import Float64Array

#: Names under which a state remembers them.
_W = "best.W"
_FOUND_AT, _SHARE = "best.dual.found_at", "best.dual.share"
_DUAL_W, _LINEAR = "best.dual.W", "best.dual.linear"
_NAMES = (_W, _FOUND_AT, _SHARE, _DUAL_W, _LINEAR)
#: What a P of float32 may be too low by, as a share of it.
_FLOAT32 = 1e-6


def best_weights(state: SolverState) -> Float64Array | None:
    """Return the W (d, m) whose P is `state.best_primal`; None before the first round."""
    return state.memory.get(_W)


def best_dual_point(state: SolverState) -> DualPoint | None:
    """Return the dual point whose D is `state.best_dual`; None where it is the state itself."""
    memory = state.memory
    if _FOUND_AT in memory:
        return FoundAt(memory[_FOUND_AT], float(memory[_SHARE][0]))
    return Summed(memory[_DUAL_W], float(memory[_LINEAR][0])) if _DUAL_W in memory else None


def with_primal(state: SolverState, W: Float64Array, primal: float) -> SolverState:
    """Keep W (d, m) and its P if no better one is known."""
    if not primal < state.best_primal:
        return state
    return replace(state, best_primal=primal, memory={**state.memory, _W: W})


def with_dual(state: SolverState, dual: float, point: DualPoint | None) -> SolverState:
    """Keep a dual point and its D if no better one is known; None is the state itself."""
    if not dual > state.best_dual:
        return state
    memory = _without(state.memory, _NAMES[1:])
    return replace(state, best_dual=dual, memory=memory | _named(point))


def with_best_of(state: SolverState, before: SolverState) -> SolverState:
    """Return a state whose memory has what was best in the state before, which a method need not pass on.

    Where float64 begins its P counts as what it is at most: one of float32 that is too low would pass for a
    gap that is closed, which costs a pass that finds out.
    """
    highest = before.best_primal * (1.0 + _FLOAT32 if state.exact and not before.exact else 1.0)
    kept = {name: before.memory[name] for name in _NAMES if name in before.memory}
    memory = _without(state.memory, _NAMES) | kept
    return replace(state, best_primal=highest, best_dual=before.best_dual, memory=memory)


def _without(memory: Mapping[str, Float64Array], names: Iterable[str]) -> dict[str, Float64Array]:
    """Return a copy without some names; a memory may have hundreds, a few of which are looked up."""
    copy = dict(memory)
    for name in names:
        copy.pop(name, None)
    return copy


def _named(point: DualPoint | None) -> dict[str, Float64Array]:
    match point:
        case FoundAt():
            return {_FOUND_AT: point.W, _SHARE: np.array([point.share])}
        case Summed():
            return {_DUAL_W: point.W, _LINEAR: np.array([point.linear])}
        case None:
            return {}
