"""Margins of all training rows, each without itself: proven where a bound or a few exact steps prove it.

Where neither does, a margin is estimated: what it would be without the row, if no other dual row left its
face.  The dual row of example j is the solution of its column problem at q_j = s_j - c' alpha_j with the
curvature c = c' + gamma, c' > 0, so that  d alpha_j = -J_j (d s_j - c' d alpha_j), J_j = -d alpha / d q >= 0.
With J_j = B D B^T and d alpha_j = B z_j that is  (D^-1 - c') z_j + B^T d s_j = 0:  a hinge keeps the ties of
its face, D^-1 = c' + gamma, and a smooth loss adds the inverse of its curvature.  The scores change with all
rows, d s_j = s sum_l K_jl d alpha_l, which makes one linear system for the free rows.  Leaving row i out is
the change d alpha_i = -alpha_i; it is the span of Vapnik and Chapelle, "Bounds on error expectation for
support vector machines", 2000, for any of the losses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.special import expit

from topline.solvers.core.inputs import checked_rows, checked_weights
from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import RowSource, as_rows, is_sparse, taken_rows
from topline.solvers.core.state import SolveResult, SolverState
from topline.solvers.crew import one_blas_thread
from topline.solvers.errors import InvalidProblemError, UnsupportedCombinationError
from topline.solvers.inspection.bounds import Margins, free_margins, margins_around, margins_of
from topline.solvers.inspection.dual_point import DualPoint, dual_point, duals_at, refuse, scores_of
from topline.solvers.kernels import KernelResult
from topline.solvers.losses.batches import column_updates
from topline.solvers.run import solve
from topline.solvers.typing import Float64Array, FloatArray, Int32Array, Int64Array, IntArray

#: Directions of the system at most: its matrix is this number squared of float64.
MOST_DIRECTIONS = 2500
#: The system is solved for as many rows as this allows, some seconds of a core, and so many passes over all
#: rows would take: about a fit of a small problem, for products of matrices are quicker than dual steps.
MOST_MULTIPLICATIONS, _MOST_PASSES = 1e10, 500
#: Rows that are left out at once.
_AT_ONCE = 1024
#: A difference is taken over this share of the distance in which a dual row moves by its whole range.
_SHORT = 1e-6
#: Movements below this share of the largest are rounding.
_FLAT = 1e-4
#: Rows with more moving classes than this stay where they are.
_MOST_CLASSES = 64
#: Added to the diagonal of the system, as a share of it: ties of more rows than W has numbers are many ways.
_RIDGE = 1e-9


@dataclass(frozen=True, eq=False)
class Faces:
    """Directions of all free rows: `rows` (R,) whose, `along` (R, m) unit vectors, `soft` (R,) D^-1 - c'."""

    rows: Int64Array
    along: Float64Array
    soft: Float64Array


def margins_by_span(point: DualPoint, left_out: Int64Array, k: int) -> Float64Array:
    """Return the estimated margins of rows, each without itself: of as many as do not take long."""
    faces = _faces_of(point)
    size = 0 if faces is None else len(faces.rows)
    if faces is None or size == 0:
        return np.empty(0)
    problem = point.problem
    most = min(MOST_MULTIPLICATIONS, float(_MOST_PASSES) * problem.n * problem.d * problem.m)
    left_out = left_out[: max(int(most / float(size) ** 2) - size, 0)]
    if not len(left_out):
        return np.empty(0)
    scores = point.scores[left_out] + _System(point, faces).score_changes(left_out)
    return margins_of(scores, point.y[left_out], k)[0]


def _faces_of(point: DualPoint) -> Faces | None:
    """Return the directions in which the dual rows of a point can move; None where there are too many."""
    free = _free_rows(point)
    if free is None:
        return None
    rows, along, soft = [], [], []
    for row, own, classes, slopes in free:
        sizes, vectors = np.linalg.eigh(0.5 * (slopes + slopes.T))
        kept = sizes > _FLAT * max(sizes[-1], 0.0)
        directions = np.zeros((int(kept.sum()), point.problem.m))
        directions[:, classes] = vectors.T[kept]
        rows.append(np.full(len(directions), row))
        along.append(directions)
        soft.append(np.maximum(1.0 / sizes[kept] - own, 0.0))
    if not rows:
        return Faces(np.empty(0, np.int64), np.empty((0, point.problem.m)), np.empty(0))
    return Faces(np.concatenate(rows), np.concatenate(along), np.concatenate(soft))


def _free_rows(point: DualPoint) -> list[tuple[int, float, Int64Array, Float64Array]] | None:
    """Return row, c', the classes that move and J among them for the rows whose J is not zero."""
    problem, form = point.problem, point.problem.form
    seen = np.flatnonzero((point.weights > 0.0) & (point.norms > 0.0))
    if form.smooth and len(seen) > MOST_DIRECTIONS:
        return None  # every row moves
    y, own = point.y[seen], problem.scale * point.weights[seen] * point.norms[seen]
    q = point.scores[seen] - own[:, None] * (point.A[seen] / point.weights[seen, None])
    c, c_own = own + problem.smoothing, own + problem.smoothing_own
    reach = np.ones(len(seen)) if form.smooth else c
    at = column_updates(form, q, y, c, c_own=c_own)
    probe = np.random.default_rng(0).standard_normal(problem.m) * (_SHORT * reach[:, None])
    moves = np.abs(column_updates(form, q + probe, y, c, c_own=c_own) - at) > _FLAT * _SHORT
    moves[moves.sum(axis=1) > _MOST_CLASSES] = False
    owner, classes = np.nonzero(moves)
    if len(owner) > 2 * MOST_DIRECTIONS:
        return None
    stepped = q[owner]
    stepped[np.arange(len(owner)), classes] += _SHORT * reach[owner]
    change = at[owner] - column_updates(form, stepped, y[owner], c[owner], c_own=c_own[owner])
    slopes = change / (_SHORT * reach[owner, None])
    cuts = np.flatnonzero(np.diff(owner)) + 1
    return [
        (int(seen[owner[part[0]]]), float(own[owner[part[0]]]), classes[part], slopes[part][:, classes[part]])
        for part in np.split(np.arange(len(owner)), cuts)
        if len(part)
    ]


class _System:
    """The linear system of the free rows, factored once for all rows that are left out."""

    def __init__(self, point: DualPoint, faces: Faces) -> None:
        self._point, self._faces = point, faces
        weights = point.weights[faces.rows]
        self._features = _gathered(point, faces.rows)
        M = point.problem.scale * (faces.along @ faces.along.T)
        M *= _products(self._features, self._features)
        M *= weights[:, None] * weights
        M[np.diag_indices_from(M)] += weights * faces.soft + _RIDGE * (1.0 + np.diag(M))
        self._factor = linalg.cho_factor(M, lower=True, overwrite_a=True, check_finite=False)

    def score_changes(self, left_out: Int64Array) -> Float64Array:
        """Return what the scores (b, m) of each of b rows change by when it is left out."""
        point, faces = self._point, self._faces
        changes = np.empty((len(left_out), point.problem.m))
        for low in range(0, len(left_out), _AT_ONCE):
            rows = left_out[low : low + _AT_ONCE]
            near = point.problem.scale * _products(self._features, _gathered(point, rows))
            near *= point.weights[faces.rows, None]
            z = self._moves(rows, near * (faces.along @ point.A[rows].T))
            own = point.problem.scale * point.norms[rows]
            changes[low : low + _AT_ONCE] = (near * z).T @ faces.along - own[:, None] * point.A[rows]
        return changes

    def _moves(self, left_out: Int64Array, forces: Float64Array) -> Float64Array:
        """Return how far each free row moves along each direction (R, b), a left-out one not at all.

        The system without the directions I of a row follows from its inverse B: z - B_:I (B_II)^-1 z_I.
        """
        rows = self._faces.rows
        own = rows[:, None] == left_out
        forces[own] = 0.0
        z = linalg.cho_solve(self._factor, forces, overwrite_b=True, check_finite=False)
        held = np.flatnonzero(own.any(axis=1))
        inverse = self._inverse
        for column in np.flatnonzero(own.any(axis=0)).tolist():
            mine = held[own[held, column]]
            z[:, column] -= inverse[:, mine] @ np.linalg.solve(inverse[np.ix_(mine, mine)], z[mine, column])
            z[mine, column] = 0.0
        return np.asarray(z)

    @cached_property
    def _inverse(self) -> Float64Array:
        unit = np.eye(len(self._faces.rows))
        return np.asarray(linalg.cho_solve(self._factor, unit, overwrite_b=True, check_finite=False))


def _gathered(point: DualPoint, rows: Int64Array) -> Any:
    return as_rows(taken_rows(point.X, rows), np.dtype(np.float64))


def _products(U: Any, V: Any) -> Float64Array:
    found = U @ V.T
    return np.asarray(found.toarray() if is_sparse(found) else found, dtype=np.float64)


#: The dual point is worth further steps until what its gap leaves open of a margin is below this.
_FINE = 0.1
#: Told how many passes were taken since it was called last.
Watch = Callable[[int], None]


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """What a training row would be called by the classifier that is trained without it.

    The margin of a row is its own class's score less the k-th best of the others; "without it" keeps lam and
    n, so that C does.

    Attributes
    ----------
    margins : (n,) estimates; within [low, high] always, and equal to the exact ones up to these.
    low, high : (n,) certified bounds of the exact margins.
    suggested : (n,) the best class other than the label.
    k : how many classes the classifier may name.
    passes : passes over the rows that dual steps took; bounds take two.
    """

    margins: Float64Array
    low: Float64Array
    high: Float64Array
    suggested: Int64Array
    k: int
    passes: int

    @property
    def right(self) -> NDArray[np.bool_]:
        """Rows that are certified to be right without themselves (n,)."""
        return self.low > 0.0

    @property
    def wrong(self) -> NDArray[np.bool_]:
        """Rows that are certified to be wrong without themselves (n,)."""
        return self.high < 0.0

    @property
    def open(self) -> NDArray[np.bool_]:
        """Rows of which neither was proven (n,)."""
        return ~(self.right | self.wrong)

    @property
    def decided(self) -> NDArray[Any]:
        """Each row as a word (n,): "right", "wrong" or "open"."""
        return np.where(self.right, "right", np.where(self.wrong, "wrong", "open"))

    @property
    def scale(self) -> float:
        """Median size of the margins, which says what a large one is; 1 where that is 0."""
        return float(np.median(np.abs(self.margins))) or 1.0

    def suspicion(self, scale: float | None = None) -> Float64Array:
        """Return how much the classifier disputes each label (n,): 1 / (1 + exp(margin / scale)).

        From 0 to 1, and 1/2 where the label is as good as the best other class.
        """
        return np.asarray(expit(-self.margins / (self.scale if scale is None else scale)))

    @property
    def suspects(self) -> Int64Array:
        """All rows (n,), the most suspicious first."""
        return np.argsort(self.margins, kind="stable")

    def error_bounds(self) -> tuple[float, float]:
        """Return the least and the largest leave-one-out error that the decided rows allow."""
        n = len(self.margins)
        return float(self.wrong.sum()) / n, float(self.wrong.sum() + self.open.sum()) / n


def leave_one_out(
    X: Any,
    y: Any,
    result: SolveResult,
    *,
    sample_weight: Any = None,
    k: int = 1,
    max_passes: int | None = None,
    watch: Watch | None = None,
) -> LeaveOneOut:
    """Return the margin of every training row under the classifier that is trained without it.

    A row with alpha_i = 0 changes nothing; of the others a bound on how far W can move decides most, and
    where it does not, exact dual steps on all rows but one do, the most doubtful labels first, until
    `max_passes` are spent; what is left then is said to be open.

    Parameters
    ----------
    X, y, sample_weight : what `solve` was given.
    result : what it returned, with A: of a hinge with a method that keeps it, or `keep_duals=True`; of a
        smooth loss minus the gradients at W take its place.
    k : a row is right while its class is among the k best.
    max_passes : passes that dual steps may take in all; by default as many as training took, and 0 for none.
    watch : called with the passes that each part of the work took.

    Raises
    ------
    UnsupportedCombinationError : a result without A, with a kernel, of label sets, of another risk than the
        mean, or of a loss that is not convex.
    InvalidProblemError : rows, labels or k that do not fit the result.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import MaxHinge, solve
    >>> from topline.solvers.inspection import leave_one_out
    >>> X, y = np.eye(3).repeat(4, axis=0), np.arange(3).repeat(4)
    >>> y[0] = 2
    >>> found = leave_one_out(X, y, solve(X, y, MaxHinge(), lam=0.01, tol=1e-6), max_passes=1000)
    >>> found.decided[:3].tolist(), found.suggested[0].item()
    (['wrong', 'right', 'right'], 0)
    """
    rows, labels, weights = checked_examples(X, y, result, sample_weight)
    with one_blas_thread():
        point = trained_point(result.problem, rows, labels, result.W, result.A, weights)
    return leave_out_each(point, k, result.passes if max_passes is None else max_passes, watch)


def trained_point(
    problem: Problem,
    X: RowSource,
    y: Int32Array,
    W: Float64Array,
    A: FloatArray | None,
    weights: Float64Array | None = None,
) -> DualPoint:
    """Return the dual point of trained weights W (d, m) and, of a hinge, their A (n, m).

    `UnsupportedCombinationError` where there is none to leave rows out of.
    """
    refuse(problem)
    weights = np.ones(problem.n) if weights is None else weights
    if A is None:
        if not problem.form.smooth:
            raise UnsupportedCombinationError(
                "the dual variables of this hinge were not kept, and rows are left out of them; train with"
                " keep_duals and a method that has them, such as dual_ascent"
            )
        A = duals_at(problem, scores_of(X, W), y, weights)
    return dual_point(problem, X, y, A, weights, W)


def judged_rows(scores: Float64Array, y: IntArray, k: int) -> LeaveOneOut:
    """Return the same of rows that the classifier has not seen, from their scores (b, m): nothing is open.

    A margin of exactly 0 counts as wrong, as every tie does.
    """
    middle, rival = margins_of(scores, y, k)
    exact = np.where(middle == 0.0, -np.finfo(np.float64).tiny, middle)
    return LeaveOneOut(middle, exact, exact, rival, k, 0)


def leave_out_each(point: DualPoint, k: int, max_passes: int, watch: Watch | None = None) -> LeaveOneOut:
    """Return `leave_one_out` of a dual point."""
    if not 1 <= k < point.problem.m:
        raise InvalidProblemError(f"k is {k}; give a whole number from 1 to {point.problem.m - 1}")
    # Of products as small as these more threads of BLAS take twice the processor's time.
    with one_blas_thread():
        point, passes = _refined(point, max_passes // 2)
        if watch is not None and passes:
            watch(passes)
        found = _estimated(point, free_margins(point, k), k)
        return _stepped(point, found, k, passes, max_passes, watch)


def checked_examples(
    X: Any, y: Any, result: SolveResult, sample_weight: Any
) -> tuple[RowSource, Int32Array, Float64Array]:
    """Return the rows, labels (n,) and weights (n,) of a result whose rows can be left out.

    Raises what `leave_one_out` raises for others.
    """
    problem = result.problem
    if isinstance(result, KernelResult):
        raise UnsupportedCombinationError(
            "rows are left out of weights, and a result with a kernel has none; train on features, such as"
            " those of a Nystroem map"
        )
    refuse(problem)
    rows, labels = checked_rows(X), np.asarray(y)
    if tuple(rows.shape) != (problem.n, problem.d) or labels.shape != (problem.n,):
        raise InvalidProblemError(
            f"rows {tuple(rows.shape)} and labels {labels.shape} are not those of the result, which has"
            f" {problem.n} rows of {problem.d} features; give what it was trained on"
        )
    weights = checked_weights(sample_weight, problem.n)
    return rows, labels.astype(np.int32), np.ones(problem.n) if weights is None else weights


def _refined(point: DualPoint, max_passes: int) -> tuple[DualPoint, int]:
    """Return a dual point whose gap no longer hides what single rows do, as far as the passes go."""
    problem = point.problem
    # sqrt(2) |x| radius, radius^2 = gap / lam
    wanted = problem.lam * _FINE * _FINE / (2.0 * max(float(point.norms.max()), 1e-300))
    if point.gap <= wanted or max_passes < 2:
        return point, 0
    start = Start(point.W, point.A)
    result = continued(point, start, point.weights, wanted, max_passes)
    if result.gap >= point.gap:
        return point, result.passes
    better = trained_point(problem, point.X, point.y, result.W, result.A, point.weights)
    return better, result.passes


def _estimated(point: DualPoint, found: Margins, k: int) -> Margins:
    """Return the margins with the best estimates in their middle that cost no pass.

    Where not all rows can have the better one, those that look wrong have it.
    """
    middle = margins_of(point.scores, point.y, k)[0]
    moving = np.flatnonzero(point.A.any(axis=1))
    moving = moving[np.argsort(found.middle[moving], kind="stable")]
    spans = margins_by_span(point, moving, k)
    middle[moving[: len(spans)]] = spans
    return replace(found, middle=np.clip(middle, found.low, found.high))


def _stepped(
    point: DualPoint, found: Margins, k: int, passes: int, budget: int, watch: Watch | None
) -> LeaveOneOut:
    """Take exact steps without each row whose sign is open, those that look wrong first."""
    middle, low, high, rival = (
        found.middle.copy(), found.low.copy(), found.high.copy(), found.rival.copy()
    )  # fmt: skip
    waiting = found.open[np.argsort(_order(middle[found.open]), kind="stable")]
    for row in waiting.tolist():
        if passes >= budget:
            break
        steps = margin_without(point, row, k, float(middle[row]), budget - passes)
        passes += steps.passes
        low[row], high[row] = max(low[row], steps.low), min(high[row], steps.high)
        middle[row] = min(max(steps.middle, low[row]), high[row])
        rival[row] = steps.rival
        if watch is not None:
            watch(steps.passes)
    return LeaveOneOut(middle, low, high, rival, k, passes)


def _order(middle: Float64Array) -> Float64Array:
    """Return what to sort by: those that look wrong first, and the clearest, which cost least."""
    return np.where(middle < 0.0, -1.0 / (1.0 - middle), 1.0 / (1.0 + middle))


#: The interval is to be this much shorter than what tells the margin from zero.
_MARGIN_OF_SAFETY = 0.5
#: A margin that is within this of zero is left open: no accuracy that float64 has tells its sign.
_SMALLEST = 1e-5
#: Runs for one row: each asks for what the one before it showed to be needed.
_TRIES = 4
_TINY = 1e-300


@dataclass(frozen=True)
class Steps:
    """The margin of a row without itself, its bounds, its best rival, and the passes that this took."""

    middle: float
    low: float
    high: float
    rival: int
    passes: int


def continued(
    point: DualPoint, start: Start, weights: Float64Array, gap: float, max_passes: int
) -> SolveResult:
    """Return what further steps with these weights reach: until the gap, or after so many passes.

    Dual ascent goes on from A; a smooth loss is minimised from W, and minus its gradients are its A.
    """
    problem = point.problem
    smooth = problem.form.smooth
    return solve(
        point.X,
        point.y,
        problem.loss,
        problem.lam,
        smoothing=problem.smoothing,
        smoothing_kind=problem.smoothing_kind,
        method="lbfgs" if smooth else "dual_ascent",
        sample_weight=weights,
        tol=max(gap / max(abs(point.primal), _TINY), 1e-14),
        max_passes=max(max_passes, 2),
        m=problem.m,
        state=SolverState.at(start.W) if smooth else None,
        duals=None if smooth else [(0, problem.n, start.A)],
        keep_duals=not smooth,
    )


@dataclass(frozen=True, eq=False)
class Start:
    """Where steps start from: W (d, m), and A (n, m) times the weights."""

    W: Float64Array
    A: FloatArray

    @classmethod
    def of(cls, result: SolveResult, before: Start) -> Start:
        """Return what a result leaves."""
        return cls(result.W, before.A if result.A is None else result.A)


def margin_without(point: DualPoint, row: int, k: int, estimate: float, max_passes: int) -> Steps:
    """Return the margin of a row without itself, by steps on all other rows until its sign is certain."""
    problem = point.problem
    weights, A = point.weights.copy(), point.A.copy()
    weights[row], A[row] = 0.0, 0.0
    if not weights.any():
        # The best of no rows is W = 0.
        return Steps(0.0, 0.0, 0.0, rival=int(point.y[row] == 0), passes=0)
    start = Start(point.W, A)
    x = as_rows(point.X[row : row + 1], np.dtype(np.float64))
    norm, passes = point.norms[row : row + 1], 0
    for _ in range(_TRIES):
        wanted = max(_MARGIN_OF_SAFETY * abs(estimate), _SMALLEST)
        # sqrt(2) |x| radius, of the ball of radius^2 = 2 gap / lam about W
        gap = problem.lam * wanted * wanted / (4.0 * max(float(norm[0]), _TINY))
        result = continued(point, start, weights, gap, max_passes - passes)
        passes += result.passes
        radius = np.array([math.sqrt(max(2.0 * result.gap, 0.0) / problem.lam)])
        found = margins_around(np.asarray(x @ result.W), point.y[row : row + 1], radius, norm, k)
        estimate = float(found.middle[0])
        if not len(found.open) or passes >= max_passes or wanted <= _SMALLEST:
            break
        start = Start.of(result, start)
    middle, low, high = (float(values[0]) for values in (found.middle, found.low, found.high))
    return Steps(middle, low, high, int(found.rival[0]), passes)


def boundary_rows(A: FloatArray, y: IntArray, m: int, most: int) -> dict[int, Int64Array]:
    """Return for each class with rows the `most` of them with the largest |alpha_i|, the largest first.

    W is a sum of rows times their alpha_i: where |alpha_i| is 0 a row carries nothing.  A (n, m), y (n,).
    """
    sizes = np.linalg.norm(np.asarray(A, dtype=np.float64), axis=1)
    found = {}
    for code in range(m):
        rows = np.flatnonzero((y == code) & (sizes > 0.0))
        if len(rows):
            found[code] = rows[np.argsort(-sizes[rows], kind="stable")[:most]]
    return found
