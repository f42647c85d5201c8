"""Leave-one-out margins of all training rows, certified where a bound or a few exact steps suffice.

The gap of W and A is a sum over the examples plus a square, with s = 1/(lam n) and A's rows already times
their weights w_i:

    P(W) - D(A) = lam/2 |W - W(A)|^2 + (1/n) sum_i e_i
    e_i = w_i (Phi_gamma(s_i; y_i) + Phi_gamma*(-alpha_i / w_i; y_i)) + <alpha_i, s_i>,  s_i = W^T x_i

Each e_i >= 0 is the Fenchel-Young slack of one example, so that the gap of the problem without example i
follows from the same numbers.

Let P_-i be the objective without the term of row i, with lam and n unchanged (and so C).  It is lam-strongly
convex, and so is minus its dual in W(A).  Any W and feasible A with the gap g therefore bound the minimiser:

    lam/2 |W_-i - W|^2 + lam/2 |W_-i - W(A)|^2 <= g,  so  |W_-i - (W + W(A))/2|^2 <= g/lam - |W - W(A)|^2/4.

Setting row i of A to zero moves W(A) by V = s x_i alpha_i^T and changes nothing else, so the bound needs no
pass: at the optimum it is the ball whose diameter is that move.  A row with alpha_i = 0 does not move W(A).

The other margins are estimated from held-out folds: by a classifier trained without the row's fold,
warm-started from the dual variables of the others, at the same lam and n and so the same C. With ten folds
the mean error is a few hundredths of a margin, against many tenths for the training margin, which has seen
the row (`tests.benchmarks.models.left_out`).

A hinge gives rows beyond its margin no weight, so its margins say little about how sure a label is.  The
second opinion is a softmax warm-started from its weights, which weights every row.  A large C makes it
memorise wrong labels and a small one tells few classes apart, so C depends on the size of the rows alone.
Which of the two ranks more of the wrong labels first depends on them: random ones the softmax, those of
similar classes often the hinge, and the mean of both suspicions is near the better one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from topline.solvers.core.problem import Problem, checked_rows, checked_weights, squared_norm
from topline.solvers.core.rows import RowSource, as_rows, slab_bounds, squared_norms, taken_rows
from topline.solvers.core.state import SolveResult, SolverState
from topline.solvers.crew import one_blas_thread
from topline.solvers.errors import InvalidProblemError, UnsupportedCombinationError
from topline.solvers.kernels import KernelResult
from topline.solvers.losses import Softmax, ranking
from topline.solvers.losses.rows import gradient_rows
from topline.solvers.run import solve
from topline.solvers.typing import Float64Array, FloatArray, Int32Array, Int64Array, IntArray

_FLOAT64 = np.dtype(np.float64)
#: Rows read and scored at once.
_READ_ROWS = 4096


@dataclass(frozen=True, eq=False)
class DualPoint:
    """Weights W, dual variables A, and quantities derived from them; all float64 except X.

    `weights` (n,) are those of the examples, and A (n, m) is already times them; W and `W_dual` (d, m) are
    the weights to judge, and W(A), `scores` and `dual_scores` (n, m) those of the rows at both; `losses` and
    `excess` (n,) are Phi_gamma and the e_i at W, and `norms` (n,) |x_i|^2.
    """

    problem: Problem
    X: RowSource
    y: Int32Array
    weights: Float64Array
    A: Float64Array
    W: Float64Array
    W_dual: Float64Array
    scores: Float64Array
    dual_scores: Float64Array
    losses: Float64Array
    excess: Float64Array
    norms: Float64Array

    @property
    def primal(self) -> float:
        """P(W)."""
        mean_loss = float(self.weights @ self.losses) / self.problem.n
        return self.problem.primal(self.W, mean_loss)

    @property
    def gap(self) -> float:
        """P(W) - D(A)."""
        apart = squared_norm(self.W - self.W_dual)
        return 0.5 * self.problem.lam * apart + float(self.excess.sum()) / self.problem.n


def refuse(problem: Problem) -> None:
    """Raise `UnsupportedCombinationError` for problems whose rows cannot be left out one by one."""
    if problem.label_sets is not None:
        raise UnsupportedCombinationError(
            "leaving rows out tells right from wrong where each row has one label, and this problem has label"
            " sets; use a loss of single labels"
        )
    if not problem.mean_risk:
        raise UnsupportedCombinationError(
            f"leaving a row out is bounded for the mean of the losses, not for the risk {problem.risk.name};"
            " train with the mean risk"
        )
    if not problem.form.convex:
        raise UnsupportedCombinationError(
            f"the loss {problem.loss.name} is not convex, so nothing bounds what a row does; use another"
        )


def read_rows(X: RowSource) -> Iterator[tuple[int, int, Any]]:
    """Yield all rows as (first row, end row, rows) in float64, dense or CSR."""
    for start, stop in slab_bounds(X, _READ_ROWS, _READ_ROWS):
        yield start, stop, as_rows(X[start:stop], _FLOAT64)


def scores_of(X: RowSource, W: FloatArray) -> Float64Array:
    """Return X W (n, r) in float64."""
    out = np.empty((int(X.shape[0]), W.shape[1]))
    for start, stop, rows in read_rows(X):
        out[start:stop] = rows @ W
    return out


#: Default number of folds.
FOLDS = 10
#: Relative gap and passes that end the training without a fold.
_FOLD_GAP, _FOLD_PASSES = 1e-3, 200
#: The dual point is refined until its gap leaves less than this of a margin uncertain.
_FINE = 0.1
#: Called with the number of passes since its last call.
Watch = Callable[[int], None]


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """How a classifier trained without each training row would classify it.

    The margin of a row is its own class's score minus the k-th best of the others; "without" keeps lam and n,
    and so C.

    Attributes
    ----------
    margins : (n,) estimates from held-out folds, always within [low, high]; without folds the training
        margins, which are too large.
    low, high : (n,) certified bounds of the exact margins.
    suggested : (n,) the best class other than the label.
    k : number of classes the classifier may name.
    passes : passes over the rows in dual steps and folds; bounds take two.
    folds : number of held-out folds, 0 for none.
    """

    margins: Float64Array
    low: Float64Array
    high: Float64Array
    suggested: Int64Array
    k: int
    passes: int
    folds: int = 0

    @property
    def right(self) -> NDArray[np.bool_]:
        """Mask (n,) of rows certified right without themselves."""
        return self.low > 0.0

    @property
    def wrong(self) -> NDArray[np.bool_]:
        """Mask (n,) of rows certified wrong without themselves."""
        return self.high < 0.0

    @property
    def open(self) -> NDArray[np.bool_]:
        """Mask (n,) of rows with neither certified."""
        return ~(self.right | self.wrong)

    @property
    def decided(self) -> NDArray[Any]:
        """Verdict "right", "wrong" or "open" on each row (n,)."""
        return np.where(self.right, "right", np.where(self.wrong, "wrong", "open"))

    @property
    def scale(self) -> float:
        """Median size of the margins, the unit of `suspicion`; 1 if that is 0."""
        return float(np.median(np.abs(self.margins))) or 1.0

    def suspicion(self, scale: float | None = None) -> Float64Array:
        """Return how much each label is disputed (n,): 1 / (1 + exp(margin / scale)), 1/2 for a tie."""
        return np.asarray(expit(-self.margins / (self.scale if scale is None else scale)))

    @property
    def suspects(self) -> Int64Array:
        """All rows (n,), the most suspicious first."""
        return np.argsort(self.margins, kind="stable")

    @property
    def error(self) -> float | None:
        """The estimated leave-one-out error; None if rows are open and no folds were held out."""
        return float((self.margins <= 0.0).mean()) if self.folds or not self.open.any() else None

    def error_bounds(self) -> tuple[float, float]:
        """Return the least and the largest leave-one-out error consistent with the decided rows."""
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
    folds: int = FOLDS,
    watch: Watch | None = None,
) -> LeaveOneOut:
    """Return the margin of every training row under the classifier trained without it.

    A row with alpha_i = 0 changes nothing.  For most others a bound on the change of W decides; for the rest
    exact dual steps on all other rows do, the most doubtful labels first, until `max_passes` are spent.  Rows
    still undecided are "open", and estimated from held-out folds.

    Parameters
    ----------
    X, y, sample_weight : as given to `solve`.
    result : its result, with A: for a hinge from a method that keeps it, or `keep_duals=True`; for a smooth
        loss minus the gradients at W replace it.
    k : a row is right if its class is among the k best.
    max_passes : total passes for dual steps; by default as many as training took, and 0 for none.
    folds : held-out folds for the estimates, each a warm-started fit; 0 for none.
    watch : called with the passes of each part of the work.

    Raises
    ------
    UnsupportedCombinationError : a result without A, with a kernel, of label sets, of a risk other than the
        mean, or of a non-convex loss.
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
    return leave_out_each(
        point, k, result.passes if max_passes is None else max_passes, watch=watch, folds=folds
    )


def trained_point(
    problem: Problem,
    X: RowSource,
    y: Int32Array,
    W: Float64Array,
    A: FloatArray | None,
    weights: Float64Array | None = None,
) -> DualPoint:
    """Return the dual point of trained W (d, m) and, for a hinge, A (n, m); refuse unsupported problems."""
    refuse(problem)
    weights = np.ones(problem.n) if weights is None else weights
    form, gammas, scores = problem.form, problem.gammas, scores_of(X, W)
    U, losses, sums = np.empty_like(scores), np.empty(problem.n), np.zeros(ranking.N_SUMS)
    gradient_rows(form, scores, y, np.ones(problem.n), gammas, U, sums, losses)
    if A is None:
        if not form.smooth:
            raise UnsupportedCombinationError(
                "the dual variables of this hinge were not kept, and rows are left out of them; train with"
                " keep_duals and a method that has them, such as dual_ascent"
            )
        A = weights[:, None] * U
    duals: Float64Array = np.asarray(A, dtype=np.float64)
    judged: Float64Array = np.asarray(W, dtype=np.float64)
    product, norms = np.zeros((problem.d, problem.m)), np.empty(problem.n)
    for start, stop, rows in read_rows(X):
        product += rows.T @ duals[start:stop]
        norms[start:stop] = squared_norms(rows)
    W_dual = problem.scale * product
    shares, table = duals / np.where(weights > 0.0, weights, 1.0)[:, None], form.table
    conjugates = np.array([form.conjugate(*row, table) for row in zip(shares, y.tolist(), strict=True)])
    own = shares[np.arange(problem.n), y]
    squares = gammas[0] * np.einsum("ij,ij->i", shares, shares) + (gammas[1] - gammas[0]) * np.square(own)
    excess = weights * (losses - conjugates + 0.5 * squares) + np.einsum("ij,ij->i", duals, scores)
    return DualPoint(
        problem, X, y, weights, duals, judged, W_dual, scores, scores_of(X, W_dual), losses, excess, norms
    )


def judged_rows(scores: Float64Array, y: IntArray, k: int) -> LeaveOneOut:
    """Return the margins of unseen rows from their scores (b, m): none is open, and ties are wrong."""
    middle, rival = margins_of(scores, y, k)
    exact = np.where(middle == 0.0, -np.finfo(np.float64).tiny, middle)
    return LeaveOneOut(middle, exact, exact, rival, k, 0)


def leave_out_each(
    point: DualPoint,
    k: int,
    max_passes: int,
    *,
    watch: Watch | None = None,
    folds: int = 0,
    fold: Int64Array | None = None,
) -> LeaveOneOut:
    """Return `leave_one_out` of a dual point; `fold` (n,) says of each row in which of the folds it lies."""
    if not 1 <= k < point.problem.m:
        raise InvalidProblemError(f"k is {k}; give a whole number from 1 to {point.problem.m - 1}")
    if folds < 0 or folds == 1:
        raise InvalidProblemError(f"there are {folds} folds to hold out; give 2 or more, or 0 for none")
    if folds and fold is None:
        fold = np.empty(point.problem.n, dtype=np.int64)
        drawn = np.random.default_rng(0).random(point.problem.n)
        fold[np.lexsort((drawn, point.y))] = np.arange(point.problem.n) % folds
    # For products this small more BLAS threads double the processor time.
    with one_blas_thread():
        point, passes = _refined(point, max_passes // 2)
        if watch is not None and passes:
            watch(passes)
        found = free_margins(point, k)
        middle, more = margins_of(point.scores, point.y, k)[0], 0
        if fold is not None:
            middle, more = held_out_margins(point, k, fold, watch)
        found = replace(found, margins=np.clip(middle, found.low, found.high))
        stepped = _stepped(point, found, passes, max_passes, watch)
    return replace(stepped, passes=stepped.passes + more, folds=folds)


def checked_examples(
    X: Any, y: Any, result: SolveResult, sample_weight: Any
) -> tuple[RowSource, Int32Array, Float64Array]:
    """Return the checked rows, labels (n,) and weights (n,) of a result; raises as `leave_one_out`."""
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
    """Return a dual point with a gap small enough to resolve single rows, as far as the passes allow."""
    problem = point.problem
    # sqrt(2) |x| radius, radius^2 = gap / lam
    wanted = problem.lam * _FINE * _FINE / (2.0 * max(float(point.norms.max()), 1e-300))
    if point.gap <= wanted or max_passes < 2:
        return point, 0
    result = continued(point, (point.W, point.A), point.weights, wanted, max_passes)
    if result.gap >= point.gap:
        return point, result.passes
    better = trained_point(problem, point.X, point.y, result.W, result.A, point.weights)
    return better, result.passes


def held_out_margins(
    point: DualPoint, k: int, fold: Int64Array, watch: Watch | None = None
) -> tuple[Float64Array, int]:
    """Return each row's margin by a classifier without the rows of its fold (n,), and the passes."""
    y, middle, passes = point.y, np.empty(point.problem.n), 0
    for held in np.unique(fold):
        rows = np.flatnonzero(fold == held)
        weights, A = point.weights.copy(), point.A.copy()
        weights[rows], A[rows] = 0.0, 0.0
        W = np.zeros_like(point.W)
        if weights.any():
            gap = _FOLD_GAP * abs(point.primal)
            found = continued(point, (point.W, A), weights, gap, _FOLD_PASSES)
            W, passes = found.W, passes + found.passes
            if watch is not None:
                watch(found.passes)
        scores = np.asarray(as_rows(taken_rows(point.X, rows), _FLOAT64) @ W)
        middle[rows] = margins_of(scores, y[rows], k)[0]
    return middle, passes


def _stepped(
    point: DualPoint, found: LeaveOneOut, passes: int, budget: int, watch: Watch | None
) -> LeaveOneOut:
    """Take exact steps without each row of uncertain sign, those that look wrong first."""
    margins, low, high = (values.copy() for values in (found.margins, found.low, found.high))
    suggested = found.suggested.copy()
    # The clearest of those that look wrong lead: they cost least.
    doubtful = margins[found.open]
    order = np.where(doubtful < 0.0, -1.0, 1.0) / (1.0 + np.abs(doubtful))
    waiting = np.flatnonzero(found.open)[np.argsort(order, kind="stable")]
    for row in waiting.tolist():
        if passes >= budget:
            break
        steps, more = margin_without(point, row, found.k, float(margins[row]), budget - passes)
        passes += more
        low[row], high[row] = max(low[row], steps.low[0]), min(high[row], steps.high[0])
        margins[row] = min(max(steps.margins[0], low[row]), high[row])
        suggested[row] = steps.suggested[0]
        if watch is not None:
            watch(more)
    return LeaveOneOut(margins, low, high, suggested, found.k, passes)


#: Safety factor: the interval must be this much shorter than needed to separate the margin from zero.
_MARGIN_OF_SAFETY = 0.5
#: Margins within this of zero stay open: float64 cannot tell their sign.
_SMALLEST = 1e-5
#: Runs per row, each with the accuracy that the one before proved necessary.
_TRIES = 4
_TINY = 1e-300


def continued(
    point: DualPoint,
    start: tuple[Float64Array, FloatArray],
    weights: Float64Array,
    gap: float,
    max_passes: int,
) -> SolveResult:
    """Return the result of further steps with these weights, until the gap or the passes are reached.

    `start` is W (d, m), from which a smooth loss is minimised, minus its gradients being its A, and A (n, m)
    times the weights, from which dual ascent continues.
    """
    problem, (W, A) = point.problem, start
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
        state=SolverState.at(W) if smooth else None,
        duals=None if smooth else [(0, problem.n, A)],
        keep_duals=not smooth,
    )


def margin_without(
    point: DualPoint, row: int, k: int, estimate: float, max_passes: int
) -> tuple[LeaveOneOut, int]:
    """Return a row's margin without itself, by steps until its sign is certain, and the passes."""
    problem = point.problem
    weights, A = point.weights.copy(), point.A.copy()
    weights[row], A[row] = 0.0, 0.0
    if not weights.any():
        # Without any rows the optimum is W = 0.
        zero = np.zeros(1)
        rival = (point.y[row : row + 1] == 0).astype(np.int64)
        return LeaveOneOut(zero, zero, zero, rival, k, 0), 0
    start: tuple[Float64Array, FloatArray] = point.W, A
    x = as_rows(point.X[row : row + 1], _FLOAT64)
    norm, passes = point.norms[row : row + 1], 0
    for _ in range(_TRIES):
        wanted = max(_MARGIN_OF_SAFETY * abs(estimate), _SMALLEST)
        # sqrt(2) |x| radius, of the ball of radius^2 = 2 gap / lam about W
        gap = problem.lam * wanted * wanted / (4.0 * max(float(norm[0]), _TINY))
        result = continued(point, start, weights, gap, max_passes - passes)
        passes += result.passes
        radius = np.array([math.sqrt(max(2.0 * result.gap, 0.0) / problem.lam)])
        found = margins_around(np.asarray(x @ result.W), point.y[row : row + 1], radius, norm, k)
        estimate = float(found.margins[0])
        if not found.open.any() or passes >= max_passes or wanted <= _SMALLEST:
            break
        start = result.W, start[1] if result.A is None else result.A
    return found, passes


def boundary_rows(A: FloatArray, y: IntArray, m: int, most: int) -> dict[int, Int64Array]:
    """Return for each class with rows the `most` of them with the largest |alpha_i|, in descending order.

    W is a sum of rows times their alpha_i, so rows with alpha_i = 0 contribute nothing.  A (n, m), y (n,).
    """
    sizes = np.linalg.norm(np.asarray(A, dtype=np.float64), axis=1)
    found = {}
    for code in range(m):
        rows = np.flatnonzero((y == code) & (sizes > 0.0))
        if len(rows):
            found[code] = rows[np.argsort(-sizes[rows], kind="stable")[:most]]
    return found


#: Rounding error of float64 sums, relative to a score.
_ROUNDING = 1e-12


def margins_around(
    scores: Float64Array, y: IntArray, radius: Float64Array, norms: Float64Array, k: int
) -> LeaveOneOut:
    """Return margins at scores (b, m) of weights with errors of at most `radius` (b,); `norms` are |x|^2.

    Each difference of two classes changes by at most sqrt(2) |x| radius.
    """
    middle, rival = margins_of(scores, y, k)
    reach = np.sqrt(2.0 * norms) * radius + _ROUNDING * (1.0 + np.abs(scores).max(axis=1, initial=0.0))
    return LeaveOneOut(middle, middle - reach, middle + reach, rival, k, 0)


def margins_of(scores: Float64Array, y: IntArray, k: int) -> tuple[Float64Array, Int64Array]:
    """Return each row's own score minus the k-th best of the others, and the best other class (b,)."""
    rows = np.arange(len(scores))
    others = scores.copy()
    others[rows, y] = -np.inf
    rival = np.argmax(others, axis=1)
    limit = others[rows, rival] if k == 1 else -np.partition(-others, k - 1, axis=1)[:, k - 1]
    return scores[rows, y] - limit, rival


def free_margins(point: DualPoint, k: int) -> LeaveOneOut:
    """Return the margins of all rows that the dual point alone certifies."""
    problem, scale = point.problem, point.problem.scale
    apart = point.scores - point.dual_scores
    move = scale * scale * point.norms * np.einsum("ij,ij->i", point.A, point.A)
    cross = scale * np.einsum("ij,ij->i", apart, point.A)
    distance = squared_norm(point.W - point.W_dual) + 2.0 * cross + move
    excess = np.maximum(point.excess.sum() - point.excess, 0.0) / problem.n
    square = 0.25 * distance + excess / problem.lam
    centre = 0.5 * (point.scores + point.dual_scores - scale * point.norms[:, None] * point.A)
    return margins_around(centre, point.y, np.sqrt(np.maximum(square, 0.0)), point.norms, k)


#: Relative gap of the softmax: 0.1 ranks few rows of many classes much worse.
_GAP = 1e-3
#: The softmax's C times the mean |x|^2: 3 for unit rows with a constant.
_C = 6.0


def second_opinion(
    X: Any, y: Any, result: SolveResult, *, sample_weight: Any = None, k: int = 1
) -> LeaveOneOut:
    """Return leave-one-out margins of every row by a softmax warm-started from `result`.

    The softmax has a C of 6 over the mean |x|^2, and a relative gap of 1e-3.  Its margins are certified by
    bounds alone: dual steps and folds would not rank rows better.

    Parameters
    ----------
    X, y, sample_weight, k : as for `leave_one_out`.
    result : from `solve`, for a convex loss of single labels; A is not needed.

    Raises
    ------
    UnsupportedCombinationError : a result with a kernel, of label sets, of a risk other than the mean, or of
        a non-convex loss.
    InvalidProblemError : rows, labels or k that do not fit the result.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import MaxHinge, solve
    >>> from topline.solvers.inspection import second_opinion
    >>> X, y = np.eye(3).repeat(4, axis=0), np.arange(3).repeat(4)
    >>> y[0] = 2
    >>> second_opinion(X, y, solve(X, y, MaxHinge(), lam=0.01)).suspects[0].item()
    0
    """
    rows, labels, weights = checked_examples(X, y, result, sample_weight)
    squares = sum(float(squared_norms(some).sum()) for *_, some in read_rows(rows))
    lam = _lam(result.problem, squares / result.problem.n)
    return leave_out_each(_trained(rows, labels, weights, result.W, lam), k, 0)


def has_second_opinion(point: DualPoint) -> bool:
    """Return whether a second opinion differs: for a hinge, and for a softmax with another C."""
    problem = point.problem
    if isinstance(problem.loss, Softmax):
        return not math.isclose(_lam(problem, float(point.norms.mean())), problem.lam, rel_tol=0.01)
    return not problem.form.smooth


def softmax_point(point: DualPoint) -> DualPoint:
    """Return the dual point of the softmax for a second opinion on the labels of `point`."""
    lam = _lam(point.problem, float(point.norms.mean()))
    return _trained(point.X, point.y, point.weights, point.W, lam)


def _trained(X: RowSource, y: Int32Array, weights: Float64Array, W: Float64Array, lam: float) -> DualPoint:
    """Return the dual point of a softmax trained from W (d, m)."""
    start = SolverState.at(W)
    softmax = solve(X, y, Softmax(), lam, sample_weight=weights, tol=_GAP, m=W.shape[1], state=start)
    return trained_point(softmax.problem, X, y, softmax.W, None, weights)


def _lam(problem: Problem, mean_square: float) -> float:
    """Return the lam of the softmax for rows of this mean |x|^2."""
    return (mean_square or 1.0) / (problem.n * _C)
