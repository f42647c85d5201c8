"""The second moments of the rows as a metric: what L-BFGS takes for the Hessian before it has seen a step.

A smooth loss has the Hessian lam I + (1/n) sum_i x_i x_i^T (x) J_i, which resembles lam I + s C (x) J:
C = (1/n) sum_i x_i x_i^T is common to all classes, J is that of one row which is as open in every class as
all rows are together, and s is one number (D. Boehning, Ann. Inst. Statist. Math. 44, 1992, bounds the
Hessian of the softmax by such a product).  Where the rows of the dual domain sum to zero J is diag(a) -
a a^T / sum(a), as diag(p) - p p^T for probabilities p, else diag(a).  For C a sample of the rows is enough,
and one decomposition serves every round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import eigh

from topline.solvers.core.problem import Problem
from topline.solvers.core.state import SolverState
from topline.solvers.methods.quasi_newton.memory import LbfgsMemory, RowMoments
from topline.solvers.methods.quasi_newton.parts import WHOLE, Parts, quotient
from topline.solvers.operations import Runner, SumMoments, VertexSums
from topline.solvers.typing import Float64Array

#: Rows of the sample for each column.
_ROWS_A_COLUMN = 5
#: The sample is as large as this share of n m / d where that is more, whose sum costs an eighth of a pass;
#: and as the second where C is to stand for rows that are left out, lest it miss a column that few rows have.
_SHARE, _SHARE_THAT_STANDS = 0.25, 8.0
#: Columns beyond which C is not decomposed.
_MOST_COLUMNS = 4_096
#: C is made where d^2 is at most this share of n m, for decomposing it then costs no more than a pass.
_WORTH_IT = 1 / 16
#: The least a_j as a share of the largest.
_OPEN = 1e-3
#: The share of the rows that a loss must still be open in.  Where few rows count, theirs is another C.
_SPREAD = 0.8
#: Numbers in the blocks of all classes up to which these are found, and d^2 / n, for which inverting them
#: takes some passes.
_MOST_NUMBERS, _MOST_SIDE = 1 << 21, 12.0
#: A first step after which it is open in a smaller share has led astray.
_ASTRAY = 0.6
#: Arrays of d x d that decomposing takes, what is kept of it included.
_ARRAYS = 4


@dataclass(frozen=True, eq=False)
class RowMetric:
    """The inverse of lam I + scale C (x) J.

    Attributes
    ----------
    basis, spectrum : eigenvectors (d, d) of C and its eigenvalues (d,).
    openness : a (m,), positive.
    lam, scale : see above.
    balanced : whether J has the second term.
    """

    basis: Float64Array
    spectrum: Float64Array
    openness: Float64Array
    lam: float
    balanced: bool
    scale: float = 1.0

    @classmethod
    def of(cls, problem: Problem, rows: RowMoments, stats: VertexSums) -> RowMetric | None:
        """Return the metric at the point of an answer, None where C is not decomposed."""
        if rows.basis is None or rows.spectrum is None:
            return None
        if stats.openness is None or not are_open(problem, stats):
            return None
        openness = stats.openness / problem.n
        openness = np.maximum(openness, _OPEN * float(openness.max()))
        balanced = problem.form.family.balanced
        return cls(rows.basis, rows.spectrum, openness, problem.lam, balanced)

    def fitted(self, step: Float64Array, change: Float64Array, parts: Parts = WHOLE) -> RowMetric:
        """Return the metric with the scale that explains best what the gradient changed by along a step."""
        moved = self._turned(step)
        opened = moved * self.openness
        if self.balanced:
            opened -= np.outer(opened.sum(axis=1), self.openness / self.openness.sum())
        opened *= self.spectrum[:, None]
        left = self._turned(change) - self.lam * moved
        scale = quotient(parts.inner(opened, left), parts.inner(opened, opened), 0.0)
        scale = np.where(scale > 0.0, scale, 1.0)
        if parts.apart:
            return replace(self, openness=self.openness * scale)
        return replace(self, scale=float(scale[0]))

    def inverse_times(self, V: Float64Array) -> Float64Array:
        """Return the product of the inverse with V (d, m); the second term of J by Sherman and Morrison."""
        curvature = self.scale * self.spectrum
        inverse = 1.0 / (np.outer(curvature, self.openness) + self.lam)
        product = inverse * self._turned(V)
        if self.balanced:
            together = self.openness.sum()
            weighed = inverse * self.openness
            left = self.lam * weighed.sum(axis=1) / together
            product += weighed * (curvature / together * (product @ self.openness) / left)[:, None]
        return np.asarray(self.basis @ product)

    def _turned(self, V: Float64Array) -> Float64Array:
        """Return V in the basis; laid out as a checkpoint gives it back, for the last bits depend on that."""
        return np.asarray(self.basis.T @ np.ascontiguousarray(V))


def wants_metric(problem: Problem, state: SolverState, stats: VertexSums) -> bool:
    """Return whether C is to be made: at the first point, so that no later budget decides on it."""
    memory = state.recalled(LbfgsMemory)
    if memory.pairs is not None or memory.rows.known or stats.openness is None:
        return False
    return wants_classes(problem) or (_worth_it(problem) and are_open(problem, stats))


def wants_classes(problem: Problem) -> bool:
    """Return whether the Hessian's blocks of single classes (m, d, d) are known, and cost little.

    A smoothed hinge has none that its gradient gives.
    """
    n, d, m = problem.n, problem.d, problem.m
    return (
        problem.form.smooth and problem.form.convex and m * d**2 <= _MOST_NUMBERS and d**2 <= _MOST_SIDE * n
    )


def open_rows(problem: Problem, stats: VertexSums) -> float:
    """Return (sum_i o_i)^2 / (n sum_i o_i^2) of the openness o_i: the share of the rows that it lies in."""
    if stats.openness is None or not stats.openness_sq > 0.0:
        return 0.0
    return float(stats.openness.sum()) ** 2 / (problem.n * stats.openness_sq)


def are_open(problem: Problem, stats: VertexSums) -> bool:
    """Return whether a loss is open in so many rows that C is theirs."""
    return open_rows(problem, stats) >= _SPREAD


def find_moments(problem: Problem, run: Runner) -> RowMoments | None:
    """Sum C over a sample of the rows, one pass; return None where blocks have no C."""
    n, d, m = problem.n, problem.d, problem.m
    classes = wants_classes(problem)
    rows = max(_ROWS_A_COLUMN * d, (_SHARE_THAT_STANDS if classes else _SHARE) * n * m / d)
    stats = run(SumMoments(max(1, round(n / rows))))
    if stats.total is None:
        return None
    moments = stats.total / max(stats.rows, 1)
    if not np.isfinite(moments).all():
        # Squares of float32 overflow where the features themselves do not.
        return RowMoments(misled=True)
    found = RowMoments(moments=moments.copy() if classes else None)
    if not _worth_it(problem):
        return found
    spectrum, basis = eigh(moments, driver="evd", overwrite_a=True, check_finite=False)
    return replace(found, basis=np.ascontiguousarray(basis), spectrum=np.maximum(spectrum, 0.0))


def misled(problem: Problem, stats: VertexSums) -> bool:
    """Return whether a first step by a metric of all rows led to where few are open: it is none for these.

    Where the classes come apart such a step goes far along directions that hardly any row has a say in.
    """
    return open_rows(problem, stats) < _ASTRAY


def arrays_of_metric(problem: Problem) -> int:
    """Return how many arrays of the shape of W that takes."""
    return -(-_ARRAYS * problem.d // problem.m) if _worth_it(problem) else 0


def _worth_it(problem: Problem) -> bool:
    n, d, m = problem.n, problem.d, problem.m
    return d <= min(_MOST_COLUMNS, n) and d**2 <= _WORTH_IT * n * m
