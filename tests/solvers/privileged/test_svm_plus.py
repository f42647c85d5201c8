"""SVM+, weighted SVMs and weight learning, against general solvers, LIBSVM and optimality conditions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.svm import SVC

from tests.reference.qp import minimise_qp
from tests.solvers.privileged.problems import linear, noisy_examples, rbf, told_of_slack
from topline import InvalidProblemError, NonFiniteError
from topline.solvers.privileged import (
    TwiceSmoothHinge,
    hypergradient,
    learn_weights,
    solve_lower,
    solve_svm_plus,
    solve_weighted_svm,
)
from topline.solvers.privileged.machines import (
    Iterate,
    QuadraticProgram,
    bias_interval,
    interior_points,
    vertex_of_face,
)

PARAMETERS = [(1.0, 1.0), (0.1, 10.0), (10.0, 0.1), (30.0, 100.0)]


@pytest.mark.parametrize("kernel", [linear, rbf])
@pytest.mark.parametrize(("C", "gamma"), PARAMETERS)
def test_it_is_the_primal_quadratic_program(kernel, C, gamma) -> None:
    """(A.7) over w, b, w~, b~ in the features of Cholesky factors: another problem than the one solved."""
    X, y, privileged = noisy_examples(1, n=30)
    K, K_privileged = kernel(X), kernel(privileged)
    ours = solve_svm_plus(K, K_privileged, y, C, gamma)
    n = len(y)
    F, G = (np.linalg.cholesky(matrix + 1e-12 * np.eye(n)) for matrix in (K, K_privileged))
    one = np.ones((n, 1))
    # Variables (w, b, w~, b~); slack = G w~ + b~.
    P = np.diag(np.concatenate([np.ones(n), [0.0], gamma * np.ones(n), [0.0]]))
    q = np.concatenate([np.zeros(n + 1), C * G.sum(axis=0), [C * n]])
    margins = np.hstack([-y[:, None] * F, -y[:, None], -G, -one])
    positive = np.hstack([np.zeros((n, n + 1)), -G, -one])
    x = minimise_qp(P, q, np.vstack([margins, positive]), np.concatenate([-np.ones(n), np.zeros(n)]))
    value = 0.5 * x @ P @ x + q @ x
    assert ours.relative_gap <= 1e-8
    assert ours.primal == pytest.approx(value, rel=1e-6)
    scale = max(1.0, np.abs(ours.scores).max())
    np.testing.assert_allclose(ours.scores, F @ x[:n] + x[n], atol=2e-4 * scale)


@pytest.mark.parametrize(("C", "gamma"), PARAMETERS)
def test_the_optimality_conditions_hold(C, gamma) -> None:
    """(A.8) and P = D, from the result's own numbers."""
    X, y, privileged = noisy_examples(2)
    K, K_privileged = rbf(X), rbf(privileged)
    result = solve_svm_plus(K, K_privileged, y, C, gamma)
    n = len(y)
    assert (result.alpha >= 0).all()
    assert (result.beta >= 0).all()
    assert abs(y @ result.alpha) <= 1e-12 * n * C
    assert result.alpha.sum() + result.beta.sum() == pytest.approx(n * C, rel=1e-12)
    coefficients = result.privileged_coefficients
    np.testing.assert_allclose(coefficients * gamma, result.alpha + result.beta - C, atol=1e-12 * C)
    scores = K @ (result.alpha * y) + result.bias
    correction = K_privileged @ coefficients + result.privileged_bias
    scale = np.abs(correction).max()
    np.testing.assert_allclose(result.correction, correction, atol=1e-12 * scale)
    # Feasible: the modelled slack is not negative and covers the hinge.
    assert (correction >= np.maximum(0.0, 1.0 - y * scores) - 1e-12 * scale).all()
    primal = 0.5 * (result.alpha * y) @ K @ (result.alpha * y) + C * correction.sum()
    primal += 0.5 * gamma * coefficients @ K_privileged @ coefficients
    assert result.primal == pytest.approx(primal, rel=1e-10)
    assert abs(result.alpha @ (correction - 1.0 + y * scores)) <= 1e-7 * primal
    assert abs(result.beta @ correction) <= 1e-7 * primal


def test_svm_minus_is_refused_by_name_and_is_unbounded() -> None:
    X, y, privileged = noisy_examples(0, n=20)
    with pytest.raises(InvalidProblemError, match="SVM-, which is unbounded below"):
        solve_svm_plus(linear(X), linear(privileged), y, 1.0, -0.5)
    # (3.15) along the ray w = 0, b = 0, w~ = s w1, b~ = 1 + s max |<w1, x~>|: feasible, and without a bound.
    steps = np.array([1e2, 1e4, 1e6])
    slope = privileged[:, 0]
    xi = 1.0 + steps[:, None] * (slope + np.abs(slope).max())
    assert (xi >= 1.0).all()
    values = -0.5 * 0.5 * steps**2 + xi.sum(axis=1)
    assert values[0] > values[1] > values[2]
    assert values[-1] < -1e11


@pytest.mark.parametrize("gamma", [0.0, np.nan, -np.inf, True, "1"])
def test_other_gammas_that_are_no_positive_numbers(gamma) -> None:
    with pytest.raises(InvalidProblemError, match=r"gamma is .*; give a positive number"):
        solve_svm_plus(np.eye(2), np.eye(2), [1, -1], 1.0, gamma)


def test_free_slacks_make_it_the_svm() -> None:
    """As gamma -> 0 with a full-rank kernel any slacks cost nothing: the soft margin SVM (Prop. 3.3)."""
    X, y, privileged = noisy_examples(4, n=40)
    K = rbf(X)
    plus = solve_svm_plus(K, rbf(privileged) + np.eye(40), y, 2.0, 1e-5)
    svm = solve_weighted_svm(K, y, np.full(40, 2.0))
    np.testing.assert_allclose(plus.scores, svm.scores, atol=2e-3)


def errors_of_a_seed(seed):
    """Errors on right labels of the SVM, of SVM+, and of SVM+ with privileged features of other examples.

    Hyperparameters are chosen for each on the same validation examples; all train on the same 40.
    """
    X, y, told, _ = told_of_slack(seed, 40)
    validation, test = told_of_slack(1000 + seed, 1000), told_of_slack(2000 + seed, 4000)
    mixed = told[np.random.default_rng(seed).permutation(len(told))]
    K = linear(X)

    def errors(result):
        w = X.T @ (result.alpha * y)
        return tuple(np.mean(np.sign(Z[0] @ w + result.bias) != Z[3]) for Z in (validation, test))

    costs, gammas = (0.01, 0.1, 1.0), (0.1, 1.0)
    plain = [errors(solve_weighted_svm(K, y, np.full(len(y), C))) for C in (*costs, 10.0)]
    plus = [errors(solve_svm_plus(K, linear(told), y, C, g)) for C in costs for g in gammas]
    misled = [errors(solve_svm_plus(K, linear(mixed), y, C, g)) for C in costs for g in gammas]
    return [min(tried)[1] for tried in (plain, plus, misled)]


def test_it_beats_the_svm_where_privileged_features_inform() -> None:
    """Ten seeds, paired: by at least 5 points on average and 3 standard errors; not when rows are mixed."""
    plain, plus, misled = np.array([errors_of_a_seed(seed) for seed in range(10)]).T
    gain = plain - plus
    assert gain.mean() >= 0.05
    assert gain.mean() >= 3.0 * gain.std(ddof=1) / np.sqrt(len(gain))
    assert (gain > 0).sum() >= 9
    assert (plain - misled).mean() < 0.0


def weights(seed, n, C):
    rng = np.random.default_rng(100 + seed)
    return C * (0.1 + rng.random(n))


@pytest.mark.parametrize("kernel", [linear, rbf])
@pytest.mark.parametrize("C", [1e-2, 1.0, 100.0])
def test_it_is_libsvm_with_sample_weights(kernel, C) -> None:
    for seed in range(3):
        X, y, _ = noisy_examples(seed)
        K, c = kernel(X), weights(seed, len(y), C)
        ours = solve_weighted_svm(K, y, c)
        theirs = SVC(C=1.0, kernel="precomputed", tol=1e-9).fit(K, y, sample_weight=c)
        assert ours.relative_gap <= 1e-8
        coefficients = np.zeros(len(y))
        coefficients[theirs.support_] = theirs.dual_coef_[0]
        scores = K @ coefficients
        # LIBSVM adds alpha up in small steps: five digits of its scores are sure, whatever its tolerance.
        scale = max(1.0, np.abs(scores).max())
        np.testing.assert_allclose(ours.scores - ours.bias, scores, atol=2e-5 * scale)
        np.testing.assert_allclose(ours.bias, theirs.intercept_[0], atol=2e-5 * scale)


@pytest.mark.parametrize("C", [0.03, 3.0, 300.0])
def test_it_is_the_quadratic_program(C) -> None:
    X, y, _ = noisy_examples(7, n=40)
    K, c = rbf(X), weights(7, 40, C)
    ours = solve_weighted_svm(K, y, c)
    n = len(y)
    box = np.vstack([np.eye(n), -np.eye(n)])
    Q = y[:, None] * K * y
    alpha = minimise_qp(Q, -np.ones(n), box, np.concatenate([c, np.zeros(n)]), y[None, :], [0.0])
    value = alpha.sum() - 0.5 * alpha @ Q @ alpha
    assert ours.dual == pytest.approx(value, rel=1e-8)
    assert ours.primal == pytest.approx(value, rel=1e-8)
    # The dual is quadratic: a point that is 1e-8 below the top is no farther than that in |w - w*|^2 / 2.
    change = ours.alpha - alpha
    assert 0.5 * change @ Q @ change <= 1e-8 * max(value, 1.0)


@pytest.mark.parametrize("kernel", [linear, rbf])
@pytest.mark.parametrize("C", [1e-3, 1.0, 1e4])
def test_the_optimality_conditions_of_the_weighted_svm_hold(kernel, C) -> None:
    """(A.5), from the result's own numbers: what the reported gap of 1e-8 promises."""
    X, y, _ = noisy_examples(3, n=80)
    K, c = kernel(X), weights(3, 80, C)
    c[::7] = 0.0
    result = solve_weighted_svm(K, y, c)
    assert abs(result.relative_gap) <= 1e-8
    assert (result.alpha >= 0).all()
    assert (result.alpha <= c).all()
    assert abs(y @ result.alpha) <= 1e-12 * c.sum()
    np.testing.assert_array_equal(result.beta, c - result.alpha)
    scores = K @ (result.alpha * y) + result.bias
    np.testing.assert_allclose(result.scores, scores, rtol=0, atol=1e-12 * np.abs(scores).max())
    slack = np.maximum(0.0, 1.0 - y * scores)
    primal = 0.5 * (result.alpha * y) @ K @ (result.alpha * y) + c @ slack
    assert result.primal == pytest.approx(primal, rel=1e-12)
    loose = 1e-5 * c.max()
    assert (result.alpha[y * scores > 1.0 + 1e-5] <= loose).all()
    assert (result.beta[slack > 1e-5] <= loose).all()


def test_a_weight_of_zero_leaves_the_example_out() -> None:
    X, y, _ = noisy_examples(5)
    c = weights(5, len(y), 2.0)
    c[::3] = 0.0
    kept = c > 0
    whole = solve_weighted_svm(rbf(X), y, c)
    part = solve_weighted_svm(rbf(X[kept]), y[kept], c[kept])
    np.testing.assert_allclose(whole.scores[kept], part.scores, atol=1e-9)
    assert (whole.alpha[~kept] == 0).all()


def test_the_best_bias_is_best_and_amid_its_equals() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = rng.integers(2, 9)
        # Whole numbers make ties of bends and of slopes common.
        scores, c = rng.integers(-3, 4, n).astype(float), rng.integers(0, 4, n).astype(float)
        y = np.where(np.arange(n) % 2 == 0, 1.0, -1.0)
        if c[y > 0].sum() == 0 or c[y < 0].sum() == 0:
            continue
        bends = np.unique(y - scores)
        values = [c @ np.maximum(0.0, 1.0 - y * (scores + b)) for b in bends]
        best = bends[np.isclose(values, np.min(values), atol=1e-12)]
        assert 0.5 * sum(bias_interval(scores, y, c)) == pytest.approx(0.5 * (best[0] + best[-1]), abs=1e-12)


def test_a_budget_of_few_rounds_is_told_by_the_gap() -> None:
    X, y, _ = noisy_examples(2)
    short = solve_weighted_svm(rbf(X), y, np.ones(len(y)), max_rounds=3)
    best = solve_weighted_svm(rbf(X), y, np.ones(len(y)))
    assert short.rounds <= 3
    assert short.relative_gap > 1e-3
    assert short.dual < best.dual < best.primal * (1 + 1e-12)
    assert best.primal < short.primal


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": [1, 0, -1, 1]}, "not all -1 or \\+1"),
        ({"y": [1, 1, 1, 1]}, "all labels are equal"),
        ({"c": [1, 1, -1, 1]}, "at least 0"),
        ({"c": [1, 0, 1, 0]}, "only one class"),
        ({"c": [1, 1, 1]}, "one number for each of 4"),
        ({"K": np.eye(3)}, "kernel of 4 examples"),
        ({"tol": 0.0}, "tol is 0.0"),
        ({"max_rounds": 0}, "max_rounds is 0; give a whole number"),
    ],
)
def test_refusals(change, message) -> None:
    arguments = {"K": np.eye(4), "y": [1, -1, 1, -1], "c": np.ones(4), **change}
    with pytest.raises(InvalidProblemError, match=message):
        solve_weighted_svm(**arguments)


def test_nan_in_the_kernel_is_refused() -> None:
    with pytest.raises(NonFiniteError, match="NaN or infinity"):
        solve_weighted_svm(np.full((2, 2), np.nan), [1, -1], [1, 1])


def test_a_matrix_that_is_no_kernel_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match="not symmetric"):
        solve_weighted_svm(np.triu(np.ones((4, 4))), [1, -1, 1, -1], np.ones(4))


def test_boxes_equations_and_singular_matrices_against_a_general_solver() -> None:
    rng = np.random.default_rng(0)
    for rank in (0, 2, 6):
        F = rng.normal(size=(6, rank))
        upper = np.array([1.0, 0.1, np.inf, np.inf, 2.0, np.inf])
        E = np.vstack([np.ones(6), [1, -1, 1, -1, 1, -1]])
        program = QuadraticProgram(F @ F.T, rng.normal(size=6), E, np.array([2.0, 0.3]), upper)
        last = list(interior_points(program, 60))[-1]
        bounded = np.isfinite(upper)
        G = np.vstack([-np.eye(6), np.eye(6)[bounded]])
        h = np.concatenate([np.zeros(6), upper[bounded]])
        x = minimise_qp(program.H, program.q, G, h, E, program.e)
        value = [0.5 * z @ program.H @ z + program.q @ z for z in (last.x, x)]
        assert value[0] == pytest.approx(value[1], abs=1e-7)
        np.testing.assert_allclose(E @ last.x, program.e, atol=1e-9)
        assert (last.x >= 0).all()
        assert (last.room >= 0).all()


def test_repeated_rows_and_classes_out_of_balance_are_no_obstacle() -> None:
    """Mehrotra's corrector alone leads away here for rounds on end, a tenth away from the optimum."""
    rng = np.random.default_rng(172)
    few, times = rng.random((9, 10)), rng.integers(1, 6, 9)
    X, place = np.repeat(few, times, axis=0), np.repeat(np.arange(9), times)
    K = np.exp(-0.5 * ((X[:, None] - X[None]) ** 2).sum(axis=2))
    result = solve_weighted_svm(K, np.where(place == 0, -1.0, 1.0), np.ones(len(X)))
    assert abs(result.relative_gap) <= 1e-8
    assert result.rounds <= 20


def test_weights_that_differ_by_ten_orders_of_magnitude() -> None:
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(40, 3)), np.where(np.arange(40) % 2 == 0, 1.0, -1.0)
    for c in (np.where(y > 0, 1e3, 1e-7), 10.0 ** rng.uniform(-6, 4, 40)):
        assert solve_weighted_svm(rbf(X), y, c).relative_gap <= 1e-8


@pytest.mark.parametrize("seed", range(40))
def test_random_problems_of_every_kind_reach_their_gap(seed) -> None:
    """Few to many examples, ties, kernels of every rank, C and gamma over six orders of magnitude."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 40))
    X, told = rng.normal(size=(n, 3)), rng.normal(size=(n, 2))
    X, told = (np.round(X) if seed % 2 else X), (told if seed % 4 else np.round(told))
    y = np.where(rng.random(n) < rng.choice([0.1, 0.5]), 1.0, -1.0)
    y[:2] = 1.0, -1.0
    K = X @ X.T if seed % 5 < 2 else rbf(X)
    K_privileged = told @ told.T if seed % 7 < 3 else rbf(told)
    C, gamma = 10.0 ** rng.uniform(-3, 3, 2)
    plus = solve_svm_plus(K, K_privileged, y, C, gamma)
    # C / gamma up to 1e6 multiplies rounding of the privileged kernel.
    assert plus.relative_gap <= 1e-6
    assert solve_weighted_svm(K, y, plus.alpha + plus.beta).relative_gap <= 1e-8


def test_a_face_that_misses_the_equations_or_the_bounds_has_no_vertex() -> None:
    program = QuadraticProgram(np.eye(2), np.zeros(2), np.ones((1, 2)), np.ones(1), np.full(2, np.inf))
    room, nothing = np.full(2, np.inf), np.zeros(2)
    at_zero = Iterate(np.full(2, 1e-9), room, np.zeros(1), np.ones(2), nothing)
    assert vertex_of_face(program, at_zero) is None
    inside = Iterate(np.array([0.4, 0.6]), room, np.zeros(1), np.full(2, 1e-9), nothing)
    np.testing.assert_allclose(vertex_of_face(program, inside), [0.5, 0.5], atol=1e-12)
    steep = QuadraticProgram(np.eye(2), np.array([0.0, 5.0]), np.ones((1, 2)), np.ones(1), program.upper)
    assert vertex_of_face(steep, inside) is None


def test_scales_beyond_float64_end_with_an_honest_gap_and_no_warning() -> None:
    """|x|^2 C = 1e14 and more: what cannot be reached is told, P and D stay bounds, nothing overflows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 4))
    y = np.where(X[:, 0] + 0.5 * rng.normal(size=40) > 0, 1.0, -1.0)
    for scale in (0.0, 1e-8, 1e4, 1e8):
        K = scale**2 * X @ X.T
        for C in (1e-6, 1e6):
            result = solve_weighted_svm(K, y, np.full(40, C))
            assert np.isfinite([result.primal, result.dual]).all()
            assert result.primal <= C * 40 * 2.0 or scale > 1.0
            assert result.relative_gap <= 1e-6 or scale * C >= 1e2
            plus = solve_svm_plus(K, K, y, C, 1.0)
            assert plus.dual <= plus.primal * (1.0 + 1e-9)


@dataclass(frozen=True)
class Logistic:
    """log(1 + exp(-t))."""

    steepest: ClassVar[float] = 0.25

    def value(self, t: np.ndarray) -> np.ndarray:
        """Return L(t)."""
        return np.logaddexp(0.0, -t)

    def slope(self, t: np.ndarray) -> np.ndarray:
        """Return L'(t)."""
        return np.asarray(-expit(-t))

    def curvature(self, t: np.ndarray) -> np.ndarray:
        """Return L''(t)."""
        return np.asarray(expit(t) * expit(-t))


LOSSES = [TwiceSmoothHinge(1.0), TwiceSmoothHinge(0.1), TwiceSmoothHinge(0.01), Logistic()]


def halves(seed, n=40, N=60):
    """Give K (n, n), y (n,), K (N, n) and y (N,) of a curved boundary with noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n + N, 3))
    y = np.where(X[:, 0] + X[:, 1] ** 2 - 0.7 + 0.5 * rng.normal(size=n + N) > 0, 1.0, -1.0)
    return rbf(X[:n]), y[:n], rbf(X[n:], X[:n]), y[n:]


@pytest.mark.parametrize("loss", LOSSES)
def test_slopes_and_curvatures_are_derivatives(loss) -> None:
    t = np.linspace(-3.0, 3.0, 2001) + 1e-3 * np.pi
    h = 1e-5
    slopes = (loss.value(t + h) - loss.value(t - h)) / (2 * h)
    # What central differences leave out, by the largest third derivative there is.
    third = 1.5 / getattr(loss, "delta", 1.0) ** 2
    np.testing.assert_allclose(loss.slope(t), slopes, atol=1e-9 + h**2 * third)
    bends = (loss.slope(t + h) - loss.slope(t - h)) / (2 * h)
    np.testing.assert_allclose(loss.curvature(t), bends, atol=1e-9 + 2 * h * third)
    assert (loss.curvature(t) >= 0).all()
    assert loss.curvature(t).max() <= loss.steepest * (1 + 1e-12)


@pytest.mark.parametrize("delta", [1.0, 0.1, 0.01])
def test_the_smooth_hinge_is_the_printed_formula_and_tends_to_the_hinge(delta) -> None:
    """(3.26), and twice continuous: both derivatives meet at 1 - 2 delta and at 1."""
    loss = TwiceSmoothHinge(delta)
    t = np.linspace(-2.0, 2.0, 801)
    quartic = (1 - t) ** 3 * (t - 1 + 4 * delta) / (16 * delta**3)
    printed = np.where(t < 1 - 2 * delta, 1 - t - delta, np.where(t <= 1, quartic, 0.0))
    np.testing.assert_allclose(loss.value(t), printed, atol=1e-12)
    assert np.abs(loss.value(t) - np.maximum(0.0, 1.0 - t)).max() <= delta * (1 + 1e-12)
    for place in (1.0 - 2.0 * delta, 1.0):
        sides = np.array([place - 1e-12, place + 1e-12])
        for part in (loss.value, loss.slope, loss.curvature):
            assert np.ptp(part(sides)) <= 1e-8 / delta**2


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("C", [0.1, 100.0])
def test_the_lower_problem_is_solved(loss, C) -> None:
    """Against BFGS of scipy on the objective in (a, b); (3.22)."""
    K, y, _, _ = halves(0)
    c = C * (0.5 + np.random.default_rng(1).random(len(y)))
    solution = solve_lower(K, y, c, loss)
    assert solution.residual <= 1e-10

    def objective(z):
        f = K @ z[:-1] + z[-1]
        pull = c * y * loss.slope(y * f)
        value = 0.5 * z[:-1] @ K @ z[:-1] + c @ loss.value(y * f)
        return value, np.append(K @ (z[:-1] + pull), pull.sum())

    ours = objective(np.append(solution.a, solution.b))[0]
    other = minimize(objective, np.zeros(len(y) + 1), jac=True, method="BFGS", options={"gtol": 1e-8})
    assert ours <= other.fun + 1e-9 * abs(ours)
    assert ours == pytest.approx(other.fun, rel=1e-4)
    np.testing.assert_allclose(solution.a, -c * y * loss.slope(y * solution.scores), atol=1e-9 * C)
    assert abs(solution.a.sum()) <= 1e-9 * C


def test_the_smooth_hinge_trains_the_weighted_svm_in_the_limit() -> None:
    K, y, _, _ = halves(3)
    c = 1.0 + np.random.default_rng(2).random(len(y))
    svm = solve_weighted_svm(K, y, c)
    distances = []
    for delta in (0.1, 0.01, 0.001):
        smooth = solve_lower(K, y, c, TwiceSmoothHinge(delta))
        change = smooth.a - svm.alpha * y
        distances.append(np.sqrt(change @ K @ change))
        # Each loss moves by delta at most, so the objective by delta sum c, and it is 1-strongly convex in w.
        assert distances[-1] <= np.sqrt(2.0 * delta * c.sum())
    assert distances[2] < 0.2 * distances[0]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("C", [0.3, 30.0])
def test_the_hypergradient_is_the_derivative(loss, C) -> None:
    """Theorem 3.5 with the minus that print lost, against central differences."""
    K, y, rows, y_rows = halves(1)
    c = C * (0.5 + np.random.default_rng(1).random(len(y)))
    solution = solve_lower(K, y, c, loss)
    _, gradient = hypergradient(K, y, rows, y_rows, c, loss, solution)

    def value(c):
        return hypergradient(K, y, rows, y_rows, c, loss, solve_lower(K, y, c, loss, solution))[0]

    h = 1e-4 * C
    differences = [(value(c + h * e) - value(c - h * e)) / (2 * h) for e in np.eye(len(y))[::4]]
    np.testing.assert_allclose(gradient[::4], differences, atol=1e-5 * np.abs(gradient).max())
    assert np.abs(gradient).max() > 1e-6
    # With the other sign every difference would be wrong.
    assert gradient[::4] @ np.array(differences) > 0


def test_the_case_without_curvature_has_its_own_gradient() -> None:
    """(3.25) with its minus: every example on the straight part, b held; da/dc = -diag(u)."""
    K, rows, y_rows = np.diag([0.01, 0.02]), np.array([[0.004, 0.001]]), np.array([1.0])
    y, c, loss = np.array([1.0, -1.0]), np.array([1.0, 1.0]), TwiceSmoothHinge(0.05)
    solution = solve_lower(K, y, c, loss)
    assert not loss.curvature(y * solution.scores).any()
    _, gradient = hypergradient(K, y, rows, y_rows, c, loss, solution)
    u = -y  # slope -1 on the straight part
    outer = loss.slope(rows @ solution.a + solution.b)
    np.testing.assert_allclose(gradient, -u * (rows.T @ outer), atol=1e-15)
    assert (gradient < 0).tolist() == [True, False]


@pytest.mark.parametrize("loss", [TwiceSmoothHinge(0.3), Logistic()])
def test_learning_lowers_the_validation_loss_and_keeps_weights_nonnegative(loss) -> None:
    K, y, rows, y_rows = halves(2)
    learnt = learn_weights(K, y, rows, y_rows, loss, 1.0, max_steps=40)
    losses = np.array(learnt.validation_losses)
    assert (np.diff(losses) <= 0).all()
    assert losses[-1] < 0.8 * losses[0]
    assert (learnt.c >= 0).all()
    t = y_rows * (rows @ learnt.solution.a + learnt.solution.b)
    assert loss.value(t).mean() == pytest.approx(losses[-1], rel=1e-12)
    again = solve_lower(K, y, learnt.c, loss)
    np.testing.assert_allclose(again.scores, learnt.solution.scores, atol=1e-8)


def test_learning_puts_outliers_aside() -> None:
    """Figure 3.3: two outliers turn the SVM between two clouds around; learnt weights forget them."""
    rng = np.random.default_rng(0)
    y = np.where(np.arange(150) % 2 == 0, 1.0, -1.0)
    X = y[:, None] * np.array([2.0, 0.0]) + 0.5 * rng.normal(size=(150, 2))
    X[0], X[1] = (-200.0, 0.0), (200.0, 0.0)
    K, rows = X[:50] @ X[:50].T, X[50:] @ X[:50].T
    plain = solve_weighted_svm(K, y[:50], np.ones(50))
    turned = rows @ (plain.alpha * y[:50]) + plain.bias
    assert np.mean(np.sign(turned) != y[50:]) > 0.3
    learnt = learn_weights(K, y[:50], rows, y[50:], TwiceSmoothHinge(0.5), 1.0)
    straight = rows @ learnt.solution.a + learnt.solution.b
    assert np.mean(np.sign(straight) != y[50:]) == 0.0
    assert (learnt.c[:2] < 0.01 * learnt.c[2:].max()).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"K_validation": np.ones((3, 5))}, "K_validation has the shape"),
        ({"y_validation": [1, 1, 1]}, "all labels are equal"),
        ({"start": -1.0}, "at least 0"),
        ({"max_steps": 2.5}, "max_steps is 2.5; give a whole number"),
        ({"start": [1.0, 0.0, 1.0, 0.0]}, "only one class"),
    ],
)
def test_what_weight_learning_refuses(change, message) -> None:
    arguments = {
        "K": np.eye(4),
        "y": [1, -1, 1, -1],
        "K_validation": np.ones((3, 4)),
        "y_validation": [1, -1, 1],
        "loss": Logistic(),
        "start": 1.0,
        **change,
    }
    with pytest.raises(InvalidProblemError, match=message):
        learn_weights(**arguments)


@pytest.mark.parametrize("delta", [0.0, -1.0, np.inf, "0.1"])
def test_a_delta_that_is_none(delta) -> None:
    with pytest.raises(InvalidProblemError, match=r"delta is .*; give a positive number"):
        TwiceSmoothHinge(delta)
