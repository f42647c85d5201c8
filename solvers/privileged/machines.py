"""Support vector machines of small data: SVM+ and weighted examples, by an interior point method.

Weighted (WSVM), with an unpenalised bias:

    P(w, b) = 1/2 |w|^2 + sum_i c_i max(0, 1 - y_i (<w, x_i> + b))                       (3.2)
    D(a)    = sum_i a_i - 1/2 |sum_i a_i y_i x_i|^2,   0 <= a_i <= c_i,  y^T a = 0       (3.4), (A.6)

SVM+, whose slacks are a function of privileged features:

    P = 1/2 (|w|^2 + gamma |w~|^2) + C sum_i xi_i,   xi_i = <w~, x~_i> + b~
        with y_i (<w, x_i> + b) >= 1 - xi_i and xi_i >= 0                                  (3.1), (A.7)
    D = sum_i a_i - 1/2 a^T Y K Y a - 1/(2 gamma) d^T K~ d,   d = a + beta - C,
        with a, beta >= 0, y^T a = 0 and 1^T d = 0                                         (3.3), (A.9)

Features x and privileged features x~, which are known in training only, enter through K and K~ alone.  The
reported gap is P - D at w = sum_i a_i y_i x_i and w~ = sum_i d_i x~_i / gamma (A.8), with the best b and b~
for these, computed in float64 however a was found: given b the least feasible b~ is
max_i (max(0, 1 - y_i (<w, x_i> + b)) - <w~, x~_i>).  With gamma < 0 ("SVM-", 3.15) the problem is unbounded
below: |w~| grows faster than C sum xi.  It is refused.

Both are small dense quadratic programs,

    min  1/2 x^T H x + q^T x   over  E x = e,  0 <= x <= u,  some u_i infinite.

Every round factors H + D once, with D the barrier's diagonal, and takes Mehrotra's predictor and corrector
steps.  Ten to thirty rounds reach the limit of float64 whatever the conditioning of H, which slows down
first-order and two-variable methods (SVM+ divides its correcting kernel by gamma).

Sources: V. Vapnik and A. Vashist, Neural Networks 22, 2009; M. Lapin, "Image Classification with Limited
Training Data and Class Ambiguity", 2017, sections 3.2.2, 3.2.3 and A.1.3; S. Mehrotra, "On the implementation
of a primal-dual interior point method", SIAM J. Optim. 2, 1992; J. Nocedal and S. Wright, "Numerical
Optimization", section 16.6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeVar

import numpy as np
from scipy import linalg

from topline.solvers.core.problem import positive_integer, positive_number
from topline.solvers.core.state import HasObjective, Objective
from topline.solvers.errors import CertificateError, InvalidProblemError, NonFiniteError
from topline.solvers.kernels.problem import symmetric
from topline.solvers.typing import Float64Array

#: Fraction of the way to the nearest bound that a step may go.
_TO_THE_BOUND = 0.995
#: A step that leaves more than this fraction of the complementarity is retried without its corrector,
_PROGRESS = 0.5
#: and with at least this centring.
_CENTRED = 0.3
#: Fractions of the largest entry added to the diagonal until the factorisation succeeds.
_RIDGES = (0.0, 1e-15, 1e-13)
#: A variable is free if its distance from the bound exceeds this times the bound's multiplier.
_SETTLED = 1.0
#: Rounds without a smaller gap before stopping.
_PATIENCE = 8
#: A relative gap below which more digits are rounding.
_DIGITS = 1e-12
#: Fraction of the first complementarity below which rounding dominates steps and violates E x = e.
_RESOLVED = 1e-22


@dataclass(frozen=True, eq=False)
class QuadraticProgram:
    """H (n, n) symmetric positive semi-definite, q (n,), E (p, n) of full rank, e (p,), u (n,), u > 0."""

    H: Float64Array
    q: Float64Array
    E: Float64Array
    e: Float64Array
    upper: Float64Array


@dataclass(frozen=True, eq=False)
class Iterate:
    """A point inside the bounds: x, room = u - x, and multipliers of Ex = e (y), x >= 0 (z), x <= u (v)."""

    x: Float64Array
    room: Float64Array
    y: Float64Array
    z: Float64Array
    v: Float64Array

    @property
    def complementarity(self) -> float:
        """Mean of x_i z_i and (u_i - x_i) v_i, the barrier parameter."""
        bounded = np.isfinite(self.room)
        products = self.x @ self.z + self.room[bounded] @ self.v[bounded]
        return float(products) / (len(self.x) + int(bounded.sum()))


ResultT = TypeVar("ResultT", bound=HasObjective)


def solve_certified(
    program: QuadraticProgram, certify: Callable[[Float64Array, int], ResultT], tol: float, rounds: int
) -> ResultT:
    """Return the result with the smallest gap among those that `certify` makes of the iterates.

    `certify(x, rounds)` makes x feasible and measures P and D there.  Once the gap is within `tol`, the
    optimum of the face that the iterates approach is tried too: it meets its bounds exactly and is accurate
    to the last digits.  While the face is unclear or tol not reached, rounds continue as long as they help.
    """
    best: ResultT | None = None
    stalled = 0
    for done, point in enumerate(interior_points(program, rounds)):
        result = certify(point.x, done)
        if best is None or result.gap < best.gap:
            best, stalled = result, 0
        else:
            stalled += 1
        if best.relative_gap <= tol:
            face = vertex_of_face(program, point)
            polished = best if face is None else certify(face, done)
            # Exact bounds are worth more than digits of the gap at rounding level.
            if polished is not best and polished.relative_gap <= max(best.relative_gap, _DIGITS):
                return polished
        if stalled >= _PATIENCE:
            break
    if best is None:
        raise CertificateError("the interior point method gave no point; scale the features")
    return best


def interior_points(program: QuadraticProgram, rounds: int) -> Iterator[Iterate]:
    """Yield the iterates, at most `rounds` after the first, until float64 allows no progress.

    The first lies well inside the bounds; E x = e holds up to rounding after the first full step.
    """
    bounded = np.isfinite(program.upper)
    x = np.where(bounded, 0.5 * np.where(bounded, program.upper, 1.0), 0.5)
    gradient = program.H @ x + program.q
    size = max(1.0, float(np.abs(gradient).mean()))
    v = np.where(bounded, np.maximum(-gradient, 0.0) + size, 0.0)
    z = np.maximum(gradient, 0.0) + size
    point = Iterate(x, program.upper - x, np.zeros(len(program.e)), z, v)
    resolved = _RESOLVED * point.complementarity
    yield point
    for _ in range(rounds):
        if point.complementarity < resolved:
            return
        try:
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                after = _step(program, point)
        except linalg.LinAlgError:
            return
        if not (np.isfinite(after.x).all() and np.isfinite(after.z).all() and np.isfinite(after.v).all()):
            return
        point = after
        yield point


def vertex_of_face(program: QuadraticProgram, point: Iterate) -> Float64Array | None:
    """Return the optimum of the face that an iterate approaches, bounds met exactly; None if infeasible.

    A variable counts as at a bound if its distance from it is smaller than the bound's multiplier.
    """
    low = point.x < _SETTLED * point.z
    high = point.room < _SETTLED * point.v
    free = np.flatnonzero(~low & ~high)
    x = np.where(high, program.upper, 0.0)
    pull = -(program.q + program.H @ x)[free]
    missing = program.e - program.E @ x
    p = len(missing)
    matrix = np.zeros((len(free) + p, len(free) + p))
    matrix[: len(free), : len(free)] = program.H[np.ix_(free, free)]
    matrix[: len(free), len(free) :] = -program.E[:, free].T
    matrix[len(free) :, : len(free)] = program.E[:, free]
    # Start at the iterate: among several optimal points of the face this selects the nearest.
    near = np.concatenate([point.x[free], point.y])
    right = np.concatenate([pull, missing])
    try:
        change = linalg.lstsq(matrix, right - matrix @ near, lapack_driver="gelsy")[0]
    except (linalg.LinAlgError, ValueError):
        return None
    x[free] = (near + change)[: len(free)]
    slack = 1e-12 * max(float(np.abs(x).max(initial=0.0)), 1.0)
    outside = (x < -slack).any() or (x > program.upper + slack).any()
    # The face may not intersect E x = e.
    missed = np.abs(program.E @ x - program.e).max() > 1e-9 * max(float(np.abs(x).sum()), 1.0)
    if outside or missed:
        return None
    return np.clip(x, 0.0, program.upper)


def _step(program: QuadraticProgram, point: Iterate) -> Iterate:
    x, room, z, v = point.x, point.room, point.z, point.v
    inverse = np.where(np.isfinite(room), 1.0 / room, 0.0)
    room_v = np.where(np.isfinite(room), room, 0.0) * v
    factor = _factored(program.H, z / x + v * inverse)
    across = linalg.cho_solve(factor, program.E.T, check_finite=False)
    schur = linalg.cho_factor(program.E @ across, lower=True, check_finite=False)
    dual = program.H @ x + program.q - program.E.T @ point.y - z + v
    primal = program.E @ x - program.e

    def direction(to_z: Float64Array, to_v: Float64Array) -> tuple[Float64Array, ...]:
        right = -dual + to_z / x - to_v * inverse
        inside = linalg.cho_solve(factor, right, check_finite=False)
        dy = linalg.cho_solve(schur, -primal - program.E @ inside, check_finite=False)
        dx = inside + across @ dy
        return dx, dy, (to_z - z * dx) / x, (to_v + v * dx) * inverse

    dx, dy, dz, dv = direction(-x * z, -room_v)
    length = _length(point, dx, dz, dv, 1.0)
    before = point.complementarity
    ahead = _moved(point, length, dx, dy, dz, dv).complementarity
    share = (ahead / before) ** 3
    bounded = np.isfinite(room)
    best = point
    # The corrector can lead astray, even cycle; a more centred step without it makes progress.
    for bend, centring in ((1.0, share), (0.0, max(share, _CENTRED))):
        target = centring * before
        to_v = np.where(bounded, target - room_v + bend * dx * dv, 0.0)
        way = direction(target - x * z - bend * dx * dz, to_v)
        moved = _moved(point, _length(point, way[0], way[2], way[3], _TO_THE_BOUND), *way)
        if best is point or moved.complementarity < best.complementarity:
            best = moved
        if best.complementarity <= _PROGRESS * before:
            break
    return best


def _factored(H: Float64Array, barrier: Float64Array) -> tuple[Float64Array, bool]:
    """Factor H + diag(barrier), increasing the diagonal if rounding leaves a negative pivot."""
    largest = float(np.max(np.diag(H)))
    for ridge in _RIDGES:
        M = H.copy()
        M[np.diag_indices_from(M)] += barrier + ridge * largest
        packed, info = linalg.lapack.dpotrf(M, lower=1, overwrite_a=1)
        if info == 0:
            return packed, True
    raise linalg.LinAlgError


def _length(point: Iterate, dx: Float64Array, dz: Float64Array, dv: Float64Array, share: float) -> float:
    """Return the longest step, at most 1, that stays inside all bounds."""
    length = 1.0
    for value, change in ((point.x, dx), (point.room, -dx), (point.z, dz), (point.v, dv)):
        falling = change < 0.0
        if falling.any():
            length = min(length, share * float(np.min(value[falling] / -change[falling])))
    return length


def _moved(
    point: Iterate, length: float, dx: Float64Array, dy: Float64Array, dz: Float64Array, dv: Float64Array
) -> Iterate:
    changes = (dx, -dx, dy, dz, dv)
    return Iterate(*(value + length * by for value, by in zip(vars(point).values(), changes, strict=True)))


#: Most bytes that a quadratic program's matrix, its copy and its factor may take together.
MEMORY_BYTES = 4 << 30


def signs(y: Any) -> Float64Array:
    """Return labels -1 and +1 as (n,) float64; refuse others, and a single class."""
    values = np.asarray(y)
    if values.ndim != 1 or not np.isin(values, (-1, 1)).all():
        raise InvalidProblemError("the labels are not all -1 or +1; give one of the two for each example")
    if len(np.unique(values)) < 2:
        raise InvalidProblemError("all labels are equal; give examples of both classes")
    return values.astype(np.float64)


def checked_kernel_matrix(name: str, K: Any, n: int) -> Float64Array:
    """Return a symmetric kernel matrix (n, n) in float64; the caller answers for its eigenvalues."""
    matrix = np.asarray(K, dtype=np.float64)
    if matrix.shape != (n, n):
        raise InvalidProblemError(f"{name} has the shape {matrix.shape}; give the kernel of {n} examples")
    if not np.isfinite(matrix).all():
        raise NonFiniteError(f"{name} holds NaN or infinity; fix or scale the features")
    return symmetric(matrix)


def finite_vector(name: str, values: Any, n: int) -> Float64Array:
    """Return n finite numbers as (n,) float64."""
    vector = np.asarray(values, dtype=np.float64)
    if vector.shape != (n,):
        raise InvalidProblemError(f"{name} has the shape {vector.shape}; give one number for each of {n}")
    if not np.isfinite(vector).all():
        raise NonFiniteError(f"{name} holds NaN or infinity; give finite numbers")
    return vector


def instance_weights(c: Any, y: Float64Array) -> Float64Array:
    """Return instance weights c >= 0, not all zero in either class, as (n,) float64."""
    weights = finite_vector("c", c, len(y))
    if (weights < 0.0).any():
        raise InvalidProblemError(f"the least weight in c is {weights.min():g}; give weights of at least 0")
    if len(np.unique(y[weights > 0.0])) < 2:
        raise InvalidProblemError("only one class has weight in c; give examples of both classes weight")
    return weights


def refuse_size(variables: int, what: str) -> None:
    """Refuse a dense program whose matrices do not fit `MEMORY_BYTES`."""
    needed = 3 * 8 * variables**2
    if needed > MEMORY_BYTES:
        raise InvalidProblemError(
            f"{what} of {variables:,} dual variables takes {needed / 2**30:.1f} GiB, and"
            f" {MEMORY_BYTES / 2**30:.1f} GiB are allowed; give fewer examples, or train TopKClassifier with"
            " sample_weight, which needs no matrix"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class DualSVMResult(HasObjective):
    """A dual point and its classifier f(x) = sum_i alpha_i y_i k(x_i, x) + bias.

    `alpha` (n,) are feasible multipliers of the margins, `beta` (n,) >= 0 those of slack >= 0, the part of
    the weights not used by alpha; `bias` is the middle of the optimal interval for w; `scores` (n,) are f at
    the training examples, and `slack` (n,) max(0, 1 - y_i f(x_i)).  P and D are those of this very point, so
    that P - D bounds the suboptimality of both; `rounds` are of the interior point method.
    """

    alpha: Float64Array
    beta: Float64Array
    bias: float
    scores: Float64Array
    slack: Float64Array
    objective: Objective
    rounds: int


@dataclass(frozen=True, eq=False, kw_only=True)
class WeightedSVMResult(DualSVMResult):
    """Result of `solve_weighted_svm`: `c` (n,) holds the weights, and beta = c - alpha."""

    c: Float64Array


def solve_weighted_svm(
    K: Any, y: Any, c: Any, *, tol: float = 1e-8, max_rounds: int = 100
) -> WeightedSVMResult:
    """Solve (3.2) for a kernel matrix K (n, n), labels y (n,) of -1 and +1 and weights c (n,) >= 0.

    K must be positive semi-definite for P - D to mean anything; this is not checked.  Examples of weight 0
    are scored and otherwise ignored.  Stops at a relative gap of `tol`, or where float64 cannot improve it;
    the result holds the gap reached.  Raises InvalidProblemError for invalid sizes, labels or weights, and
    for too many examples for memory, and NonFiniteError for NaN or infinity in K or c.
    """
    y = signs(y)
    c = instance_weights(c, y)
    K = checked_kernel_matrix("K", K, len(y))
    tol, max_rounds = positive_number("tol", tol), positive_integer("max_rounds", max_rounds)
    used = np.flatnonzero(c > 0.0)
    refuse_size(len(used), "a weighted SVM")
    y_used = y[used]
    # The alphas of both classes have equal sums, so twice the weight of the lighter class never binds.
    lighter = min(float(c[y > 0.0].sum()), float(c[y < 0.0].sum()))
    upper = np.minimum(c[used], 2.0 * lighter)
    scale = float(upper.max())
    H = scale * (y_used[:, None] * K[np.ix_(used, used)] * y_used)
    program = QuadraticProgram(H, -np.ones(len(used)), y_used[None, :], np.zeros(1), upper / scale)

    def certify(x: Float64Array, rounds: int) -> WeightedSVMResult:
        alpha = np.zeros(len(y))
        alpha[used] = np.minimum(scale * x, c[used])
        return weighted_svm_result(K, y, c, balanced(alpha, y), rounds)

    return solve_certified(program, certify, tol, max_rounds)


def weighted_svm_result(
    K: Float64Array, y: Float64Array, c: Float64Array, alpha: Float64Array, rounds: int = 0
) -> WeightedSVMResult:
    """Measure P and D of (3.2) at a feasible alpha, with the best bias for its w."""
    centred = K @ (alpha * y)
    norm = float((alpha * y) @ centred)
    low, high = bias_interval(centred, y, c)
    bias = 0.5 * (low + high)
    scores = centred + bias
    slack = np.maximum(0.0, 1.0 - y * scores)
    primal = 0.5 * norm + float(c @ slack)
    dual = float(alpha.sum()) - 0.5 * norm
    return WeightedSVMResult(
        alpha=alpha, beta=c - alpha, bias=bias, scores=scores, slack=slack,
        objective=Objective.checked(primal, dual, abs(primal) + abs(dual)),
        rounds=rounds, c=c,
    )  # fmt: skip


def balanced(alpha: Float64Array, y: Float64Array) -> Float64Array:
    """Return alpha >= 0 with equal sums over both classes, by shrinking the heavier class."""
    positive = y > 0.0
    ups, downs = float(alpha[positive].sum()), float(alpha[~positive].sum())
    if ups == downs or min(ups, downs) < 0.0:
        return alpha
    heavier = positive if ups > downs else ~positive
    return np.where(heavier, alpha * (min(ups, downs) / max(ups, downs)), alpha)


def bias_interval(scores: Float64Array, y: Float64Array, c: Float64Array) -> tuple[float, float]:
    """Return the least and the largest b that minimise sum_i c_i max(0, 1 - y_i (scores_i + b)).

    They are equal unless weights balance as in Theorem 3.1.  The sum is convex with kinks at b = y_i -
    scores_i.  Its slope rises from minus the weight of the positive class, by c_i at each kink; the interval
    is where it is 0.
    """
    bends = y - scores
    order = np.argsort(bends, kind="stable")
    slope = np.cumsum(c[order]) - float(c[y > 0.0].sum())
    # Sums of equal weights differ by rounding.
    noise = 4.0 * len(c) * float(np.finfo(np.float64).eps) * float(c.sum())
    first = int(np.argmax(slope >= -noise))
    last = int(np.argmax(slope > noise)) if slope[-1] > noise else first
    return float(bends[order[first]]), float(bends[order[last]])


@dataclass(frozen=True, eq=False, kw_only=True)
class SVMPlusResult(DualSVMResult):
    """Result of `solve_svm_plus` for C and gamma; `correction` (n,) is <w~, x~_i> + b~, at least `slack`."""

    C: float
    gamma: float
    privileged_bias: float
    correction: Float64Array

    @property
    def privileged_coefficients(self) -> Float64Array:
        """Coefficients (n,) of the privileged kernel in <w~, .>: (alpha + beta - C) / gamma."""
        return np.asarray((self.alpha + self.beta - self.C) / self.gamma)


def solve_svm_plus(
    K: Any, K_privileged: Any, y: Any, C: float, gamma: float, *, tol: float = 1e-8, max_rounds: int = 100
) -> SVMPlusResult:
    """Solve (3.1) for kernel matrices K and K~ (n, n) and labels y (n,) of -1 and +1.

    Both must be positive semi-definite for P - D to mean anything; this is not checked.  Stops at a relative
    gap of `tol`, or where float64 cannot improve it; the result holds the gap reached.  Raises
    InvalidProblemError for invalid sizes, labels or parameters, such as gamma < 0 (SVM-), and for too many
    examples for memory, and NonFiniteError for NaN or infinity in a kernel matrix.
    """
    y = signs(y)
    n = len(y)
    given: Any = gamma
    if isinstance(given, Real) and -math.inf < float(given) < 0.0:
        raise InvalidProblemError(
            f"gamma is {gamma!r}: with gamma < 0 this is SVM-, which is unbounded below and has no solution;"
            " give a positive number, or reach such solutions with solve_weighted_svm"
        )
    C, gamma, tol = (
        positive_number(name, value) for name, value in (("C", C), ("gamma", gamma), ("tol", tol))
    )
    max_rounds = positive_integer("max_rounds", max_rounds)
    K = checked_kernel_matrix("K", K, n)
    correcting = checked_kernel_matrix("K_privileged", K_privileged, n)
    refuse_size(2 * n, "SVM+")

    # (A.9) in x = (alpha, beta) / C, divided by C.
    H = np.empty((2 * n, 2 * n))
    H[n:, n:] = (C / gamma) * correcting
    H[:n, n:] = H[n:, :n] = H[n:, n:]
    H[:n, :n] = H[n:, n:] + C * (y[:, None] * K * y)
    pull = -(C / gamma) * correcting.sum(axis=1)
    E = np.stack([np.concatenate([y, np.zeros(n)]), np.ones(2 * n)])
    e, upper = np.array([0.0, float(n)]), np.full(2 * n, np.inf)
    program = QuadraticProgram(H, np.concatenate([pull - 1.0, pull]), E, e, upper)

    def certify(x: Float64Array, rounds: int) -> SVMPlusResult:
        # Rescaled to y^T alpha = 0 and a sum of n C over both.
        alpha, beta = balanced(C * x[:n], y), C * x[n:]
        used, rest = float(alpha.sum()), float(beta.sum())
        if used >= n * C or rest <= 0.0:
            alpha, beta = alpha * (n * C / used), np.zeros_like(beta)
        else:
            beta = beta * ((n * C - used) / rest)
        return svm_plus_result(K, correcting, y, C, gamma, alpha, beta, rounds)

    return solve_certified(program, certify, tol, max_rounds)


def svm_plus_result(
    K: Float64Array,
    K_privileged: Float64Array,
    y: Float64Array,
    C: float,
    gamma: float,
    alpha: Float64Array,
    beta: Float64Array,
    rounds: int = 0,
) -> SVMPlusResult:
    """Measure P and D of (3.1) at a feasible (alpha, beta), with the best b and b~ for its w and w~."""
    centred = K @ (alpha * y)
    norm = float((alpha * y) @ centred)
    change = alpha + beta - C
    correction = K_privileged @ change / gamma
    correcting_norm = float(change @ correction)  # gamma |w~|^2
    missing = 1.0 - y * centred - correction
    ups, downs = float(missing[y > 0.0].max()), float(missing[y < 0.0].max())
    bias = 0.5 * (ups - downs)
    privileged_bias = max(0.5 * (ups + downs), float((-correction).max()))
    correction = correction + privileged_bias
    scores = centred + bias
    primal = 0.5 * (norm + correcting_norm) + C * float(correction.sum())
    dual = float(alpha.sum()) - 0.5 * (norm + correcting_norm)
    return SVMPlusResult(
        alpha=alpha, beta=beta, bias=bias, scores=scores, slack=np.maximum(0.0, 1.0 - y * scores),
        objective=Objective.checked(primal, dual, abs(primal) + abs(dual)), rounds=rounds, C=C, gamma=gamma,
        privileged_bias=privileged_bias, correction=correction,
    )  # fmt: skip
