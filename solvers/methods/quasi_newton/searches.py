"""What became of the steps that were tried: the line searches of all parts, a round further."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from topline.solvers.core.problem import Problem
from topline.solvers.core.state import SolverState
from topline.solvers.methods.quasi_newton.memory import STALLED, LbfgsMemory
from topline.solvers.methods.quasi_newton.pairs import Metric, Pairs, most_pairs
from topline.solvers.methods.quasi_newton.parts import NONE, Lines, Parts, chosen, gradient_steps
from topline.solvers.typing import Float64Array

#: Steps that are tried along one direction before it is given up.
_TRIALS = 20
#: A gradient below this share of the terms that it is the difference of is rounding, of float32 products or
#: of float64 ones.
_ROUNDING_FLOAT32 = 1e-6
_ROUNDING = 1e-15


@dataclass(frozen=True, eq=False)
class Searches:
    """The line searches after an evaluation.

    Attributes
    ----------
    lines : with another step to try where that is to be.
    taken : parts whose step is good enough.
    rest : parts that find nowhere to go, now or before.
    lost : those of them whose line, made of pairs, led nowhere: without these there may be another.
    pairs : with the steps taken, and without those of a line that led nowhere.
    """

    lines: Lines
    taken: NDArray[np.bool_]
    rest: NDArray[np.bool_]
    lost: NDArray[np.bool_]
    pairs: Pairs

    @classmethod
    def of(cls, problem: Problem, before: SolverState, values: Float64Array, gradient: Float64Array) -> Self:
        """Return them after an evaluation that gave P of the parts, and the gradient."""
        memory, parts, exact = before.recalled(LbfgsMemory), Parts.of(problem), before.point.exact
        pairs, line = memory.pairs or Pairs(parts=parts), memory.line
        rest = lost = np.zeros(len(values), dtype=np.bool_)
        taken, lines = ~rest, Lines.start(values, np.zeros_like(values), np.ones_like(values))
        if line is not None:
            lines = line.lines
            rested, slopes = lines.slopes == 0.0, parts.inner(gradient, line.direction)
            taken = rested | lines.accept(values, slopes)
            lines = lines.after(values, slopes, taken)
            # A shorter step promises less than sums of float32 products tell.
            unseen = -lines.steps * lines.slopes <= STALLED * np.abs(lines.values)
            vain = ~taken & ((unseen & (not exact)) | (lines.trials >= _TRIALS))
            stalled = taken & (lines.values - values <= STALLED * np.abs(values)) & (not exact)
            rest, lost = rested | vain | stalled, (vain & pairs.known) | (rested & (lines.trials > 0))
            if taken.any():
                step = chosen(taken, before.W - line.base, NONE)
                change = chosen(taken, gradient - line.gradient, NONE)
                pairs = pairs.with_pair(step, change, most_pairs(problem))
            pairs = pairs.of_parts(~vain)
        rounding = _ROUNDING if exact else _ROUNDING_FLOAT32
        terms = problem.lam * (parts.norm(before.W) + parts.norm(before.W - gradient / problem.lam))
        rest = rest | (taken & (parts.norm(gradient) <= rounding * terms))
        return cls(lines.at_rest(rest, lost), taken, rest, lost, pairs)

    @property
    def tried(self) -> NDArray[np.bool_]:
        """The parts that try another step."""
        return ~self.taken & ~self.rest

    @property
    def off(self) -> NDArray[np.bool_]:
        """The parts that set off in another direction."""
        return self.taken & ~self.rest

    def are_over(self, memory: LbfgsMemory, *, exact: bool) -> bool:
        """Return whether no part goes on, or those that float32 cannot move have most of the gap."""
        if exact or memory.best is None or not self.rest.any():
            return bool(self.rest.all())
        gaps = memory.best.steepness
        return bool(self.rest.all() or gaps[self.rest].sum() >= gaps[~self.rest].sum())


@dataclass(frozen=True, eq=False)
class Descent:
    """A direction of descent, for the parts that set off.

    Attributes
    ----------
    direction : (d, m), and the slopes along it, 0 of other parts.
    scaled : the parts in which pairs or a metric have made it.
    pairs : those that it was made with.
    """

    direction: Float64Array
    slopes: Float64Array
    scaled: NDArray[np.bool_]
    pairs: Pairs

    @classmethod
    def of(cls, gradient: Float64Array, pairs: Pairs, metric: Metric | None, off: NDArray[np.bool_]) -> Self:
        """Return it for a gradient; where pairs lead up, that of the gradient itself."""
        inner = pairs.parts.inner
        direction = -pairs.times(gradient, metric)
        slopes = inner(gradient, direction)
        wrong = off & ~(slopes < 0.0)
        if wrong.any():
            pairs, direction = pairs.of_parts(~wrong), chosen(wrong, -gradient, direction)
            slopes = np.where(wrong, -inner(gradient, gradient), slopes)
        scaled = ~wrong & (pairs.known if metric is None else True)
        return cls(direction, np.where(off, slopes, 0.0), scaled, pairs)

    def lines(self, problem: Problem, values: Float64Array) -> Lines:
        """Return the searches along it, from P of every part; where that is scaled the first step is 1."""
        steps = np.ones_like(values)
        if not self.scaled.all():
            steps = np.where(self.scaled, steps, gradient_steps(problem, values, self.slopes))
        return Lines.start(values, self.slopes, steps)
