"""What L-BFGS remembers from round to round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topline.solvers.core.codec import stored
from topline.solvers.methods.quasi_newton.pairs import Pairs
from topline.solvers.methods.quasi_newton.parts import Lines, chosen
from topline.solvers.typing import Float64Array

#: A step that lowers P by a smaller share is where float64 products begin, and points whose P differ by less
#: are told apart by their gradients.
STALLED = 1e-7


@stored
@dataclass(frozen=True, eq=False)
class BestParts:
    """The best point so far, put together of the best points of the parts.

    Attributes
    ----------
    W : (d, m) the point.
    values, steepness : P and |grad P|^2 of every part there.
    lowest : the lowest P of every part.
    """

    W: Float64Array
    values: Float64Array
    steepness: Float64Array
    lowest: Float64Array

    def with_point(self, W: Float64Array, values: Float64Array, steepness: Float64Array) -> BestParts:
        """Return the best with W in it, where P and |grad P|^2 of a part say that it is better there."""
        lower = values < (1.0 - STALLED) * self.lowest
        better = lower | ((values <= (1.0 + STALLED) * self.lowest) & (steepness < self.steepness))
        if not better.any():
            return self
        return BestParts(
            chosen(better, W, self.W),
            np.where(better, values, self.values),
            np.where(better, steepness, self.steepness),
            np.where(better, np.minimum(values, self.lowest), self.lowest),
        )


@stored
@dataclass(frozen=True, eq=False)
class Line:
    """Where a step began: `base` W (d, m), the gradient there, its direction, and the searches along it."""

    base: Float64Array
    gradient: Float64Array
    direction: Float64Array
    lines: Lines


@stored
@dataclass(frozen=True, eq=False)
class RowMoments:
    """The second moments C of the rows, which serve every lam.

    Attributes
    ----------
    basis, spectrum : its eigenvectors (d, d) and eigenvalues (d,), None where it is not decomposed.
    moments : C (d, d), None where the metric of classes has no use for it.
    misled : whether a step by them led astray, or they overflowed.
    """

    basis: Float64Array | None = None
    spectrum: Float64Array | None = None
    moments: Float64Array | None = None
    misled: bool = False

    @property
    def known(self) -> bool:
        """Whether they were looked for."""
        return self.misled or self.basis is not None or self.moments is not None


@stored
@dataclass(frozen=True, eq=False)
class Openness:
    """How open the classes (m,) are, and the share of the rows that are open.

    `passes`, `gap` and `total` are the passes, the relative gap and the sum of the openness when the Hessian
    of the classes was found, or the run began.
    """

    classes: Float64Array
    rows: float
    passes: float
    gap: float
    total: float


@stored
@dataclass(frozen=True, eq=False)
class Turns:
    """The passes and the gaps (m,) at which the Hessian's block of each class was found, or the run began."""

    passes: Float64Array
    gaps: Float64Array


@stored
@dataclass(frozen=True, eq=False)
class ClassBlocks:
    """The Hessian's blocks H_j of single classes.

    Attributes
    ----------
    inverses : (m, d, d), or (1, d, d) where all are alike; None where they were not found.
    openness : None before it is known, and where every class is minimised by itself.
    asked : (m,) from which openness on the next evaluation sums rows, None where it sums none.
    turns : where every class is minimised by itself, None else.
    """

    inverses: Float64Array | None = None
    openness: Openness | None = None
    asked: Float64Array | None = None
    turns: Turns | None = None


@stored
@dataclass(frozen=True, eq=False)
class LbfgsMemory:
    """What L-BFGS remembers.

    Attributes
    ----------
    first : |grad P(0)| where the loss is not convex.
    best : the best point so far, which is what a run gives; None before the first round.
    line : where the step began that is tried next, None where there is none.
    pairs : the last steps and what the gradient changed by.
    rows, classes : what stands for the Hessian before steps have shown it.
    """

    first: float | None = None
    best: BestParts | None = None
    line: Line | None = None
    pairs: Pairs | None = None
    rows: RowMoments = RowMoments()
    classes: ClassBlocks = ClassBlocks()
