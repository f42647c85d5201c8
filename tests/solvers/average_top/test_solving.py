"""Aggregates, losses, optima and certificates against definitions, a general solver and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import linprog
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC, NuSVC, NuSVR

from tests.reference.average_top import loss_values, objective, optimum
from tests.reference.risks import mean_of_largest
from tests.reproduce.average_top.certificates import certify
from tests.solvers.average_top.problems import (
    BINARY,
    EVERY_LOSS,
    dual_of_equation_6,
    equation_5,
    equation_6,
    examples,
    is_nu_svm,
    rho_of,
)
from topline import InvalidProblemError, LinearKernel, NonFiniteError, RBFKernel, Status
from topline.solvers.average_top import (
    INDIVIDUAL_LOSSES,
    AverageTopProblem,
    C_from_equation_3,
    C_from_svm,
    C_to_equation_3,
    average_top,
    individual_loss,
    kth_largest,
    minimise,
    minimise_with_kernel,
    solving,
    top_weights,
)
from topline.solvers.kernels import KernelFeatures

#: Relative error of the reference optimum, which exponential cones limit; the gaps say more of ours.
REFERENCE = 1e-6


@pytest.mark.parametrize("name", EVERY_LOSS)
@pytest.mark.parametrize("k", [1, 7.5, 20, 40])
@pytest.mark.parametrize("C", [0.1, 30.0])
@pytest.mark.covering(2)
def test_optima_are_those_of_a_general_solver(name, k, C) -> None:
    X, y = examples(name)
    value, w = optimum(X, y, name, k, C)
    exact = minimise(X, y, name, k, C, method="interior_point", tol=1e-9)
    assert exact.status is Status.SOLVED
    assert exact.primal == pytest.approx(value, rel=REFERENCE)
    # P is strongly convex: both are within the square root of their gaps of the optimum.
    assert np.linalg.norm(exact.w - w) <= np.sqrt(2.0 * C * exact.gap) + np.sqrt(2.0 * C * REFERENCE * value)
    cuts = minimise(X, y, name, k, C, method="bundle", tol=1e-4)
    assert cuts.status is Status.SOLVED
    assert value * (1.0 - REFERENCE) <= cuts.primal <= value * (1.0 + 1e-4)


@pytest.mark.parametrize("name", EVERY_LOSS)
@pytest.mark.parametrize("method", ["interior_point", "bundle"])
def test_the_certificate_is_what_it_says(name, method) -> None:
    """P by sorting; D from u, b and p alone, each of which is feasible."""
    X, y = examples(name, seed=5)
    k, C = 12.5, 10.0
    result = minimise(X, y, name, k, C, method=method, tol=1e-3)
    assert result.primal == pytest.approx(objective(X, y, name, k, C, result.w), rel=1e-13)
    assert 0.0 <= result.gap <= 1e-3 * result.primal
    assert result.dual <= optimum(X, y, name, k, C)[0] * (1.0 + REFERENCE)
    bound = result.bound
    if bound is not None:
        assert bound.p.min() >= 0.0
        assert bound.p.max() <= (1.0 + 1e-12) / k
        assert bound.p.sum() <= 1.0 + 1e-12
        assert result.dual == pytest.approx(bound.b - 0.5 * C * np.sum((X.T @ bound.u) ** 2), rel=1e-12)
        # A lower bound of <p, l> at any scores is all that the dual value rests on.
        for seed in range(5):
            w = np.random.default_rng(seed).standard_normal(X.shape[1])
            assert objective(X, y, name, k, C, w) >= bound.b + bound.u @ (X @ w) + w @ w / (2.0 * C)


@pytest.mark.parametrize("excess", ["sum", "largest"])
def test_weights_outside_their_set_are_scaled_into_it(excess) -> None:
    """A bound made of them would lie above the optimum."""
    X, y = examples("hinge", seed=5)
    problem = AverageTopProblem.of(X, y, "hinge", 12.5, 10.0)
    p = np.full(40, 0.05) if excess == "sum" else np.where(np.arange(40) == 3, 0.5, 0.0)
    bound = problem.lower_bound(-p * y, p.sum(), p)
    assert bound.p.sum() <= 1.0 + 1e-12
    assert bound.p.max() <= (1.0 + 1e-12) / 12.5
    assert bound.value == pytest.approx(bound.p.sum() - 5.0 * np.sum((X.T @ (bound.p * y)) ** 2))
    assert bound.b == pytest.approx(bound.p.sum())


@pytest.mark.parametrize("method", ["interior_point", "bundle", "auto"])
def test_sparse_features_give_the_same(method) -> None:
    X, y = examples("hinge", seed=2)
    X = np.where(np.abs(X) < 0.6, 0.0, X)
    dense, thin = (minimise(rows, y, "hinge", 9, 5.0, method=method) for rows in (X, sparse.csr_matrix(X)))
    np.testing.assert_allclose(thin.w, dense.w, atol=1e-9)
    assert thin.primal == pytest.approx(dense.primal, rel=1e-12)


@pytest.mark.parametrize("name", EVERY_LOSS)
def test_features_may_repeat_each_other_and_outnumber_the_examples(name) -> None:
    """Repeating all features is the same as doubling C."""
    X, y = examples(name, n=12, d=20)
    once = minimise(X, y, name, 5, 2.0, tol=1e-9)
    twice = minimise(np.hstack([X, X]), y, name, 5, 1.0, tol=1e-9)
    assert twice.status is Status.SOLVED
    assert twice.primal == pytest.approx(once.primal, rel=1e-8)
    np.testing.assert_allclose(twice.w[:21] + twice.w[21:], once.w, atol=1e-5)


@pytest.mark.parametrize("C", [1e-5, 1e5])
@pytest.mark.parametrize("name", EVERY_LOSS)
@pytest.mark.parametrize("scale", [1e-3, 1e3])
@pytest.mark.covering(2)
def test_scales_are_no_obstacle(name, C, scale) -> None:
    X, y = examples(name, n=100, d=5, seed=1)
    targets = y if name in ("hinge", "logistic") else scale * y
    result = minimise(scale * X, targets, name, 40, C, tol=1e-8)
    assert result.status is Status.SOLVED
    assert result.relative_gap <= 1e-8


@pytest.mark.parametrize("C", [1e-5, 0.01, 100.0, 1e4])
@pytest.mark.parametrize("k", [1, 15, 150])
@pytest.mark.parametrize("name", EVERY_LOSS)
@pytest.mark.covering(2)
def test_features_as_they_come_are_no_obstacle(name, k, C) -> None:
    """Columns from 1 to 1000 wide, off centre and with heavy tails, and targets about 20, as in tables."""
    random = np.random.default_rng(0)
    X = random.exponential(size=(150, 6)) ** 3 * np.geomspace(1.0, 1000.0, 6) + [
        0.0,
        5.0,
        0.0,
        300.0,
        0.0,
        9.0,
    ]
    latent = (X / np.geomspace(1.0, 1000.0, 6)) @ random.standard_normal(6) + random.standard_normal(150)
    y = (
        np.where(latent > np.median(latent), 1.0, -1.0)
        if name in ("hinge", "logistic")
        else 20.0 + 9.0 * latent
    )
    result = minimise(np.column_stack([X, np.ones(150)]), y, name, k, C, tol=1e-6)
    assert result.status is Status.SOLVED


def test_k_equal_to_n_is_logistic_regression() -> None:
    """Its losses are in nats, ours in bits: a sum of n nats is n log(2) times our mean."""
    X, y = examples("logistic")
    n, C = len(y), 0.7
    other = LogisticRegression(C=C, fit_intercept=False, tol=1e-10, max_iter=1000).fit(X, y)
    result = minimise(X, y, "logistic", n, n * np.log(2.0) * C, tol=1e-11)
    np.testing.assert_allclose(result.w, other.coef_[0], atol=1e-5)


@pytest.mark.parametrize("name", EVERY_LOSS)
@pytest.mark.parametrize("method", ["interior_point", "bundle"])
def test_contradicting_examples_collapse(name, method) -> None:
    """Each x with both targets: no w does better than 0, whatever C (erratum h5b)."""
    X, y = examples(name, n=15)
    X, y = np.vstack([X, X]), np.concatenate([y, -y])
    result = minimise(X, y, name, 2, 100.0, method=method)
    assert result.collapsed
    assert not result.w.any()
    assert result.status is Status.SOLVED
    assert result.primal == pytest.approx(objective(X, y, name, 2, 100.0, np.zeros(4)), rel=1e-14)


@pytest.mark.parametrize("method", ["interior_point", "bundle"])
def test_small_weights_are_not_taken_for_none(method) -> None:
    """C = 1e-6 leaves w small and P within 1e-5 of P(0), but w = C (mean of y x) says something."""
    X, y = examples("hinge")
    result = minimise(X, y, "hinge", 40, 1e-6, method=method, tol=1e-3)
    assert not result.collapsed
    np.testing.assert_allclose(result.w, 1e-6 * X.T @ y / 40, rtol=1e-3)


def test_noise_decides_what_collapses() -> None:
    """With a tenth of the labels flipped the four worst of forty contradict each other, not the thirty."""
    X, y = examples("hinge", noise=0.0)
    y[::10] *= -1.0
    assert minimise(X, y, "hinge", 4, 10.0).collapsed
    assert not minimise(X, y, "hinge", 30, 10.0).collapsed


@pytest.mark.parametrize("method", ["interior_point", "bundle"])
@pytest.mark.parametrize("name", ["square", "absolute"])
def test_targets_of_zero_are_met_by_zero(method, name) -> None:
    """w = 0 is then the right answer, and no collapse."""
    X, y = examples(name)
    result = minimise(X, np.zeros_like(y), name, 5, 1.0, method=method)
    assert not result.w.any()
    assert (result.primal, result.dual, result.collapsed) == (0.0, 0.0, False)
    assert result.status is Status.SOLVED


@pytest.mark.parametrize("name", EVERY_LOSS)
@pytest.mark.parametrize("k", [1, 7.5, 40])
def test_any_weights_can_be_certified(name, k) -> None:
    X, y = examples(name, seed=8)
    problem = AverageTopProblem.of(X, y, name, k, 3.0)
    value, _ = optimum(X, y, name, k, 3.0)
    for w in (np.zeros(4), np.array([0.3, -0.2, 0.5, 1.0])):
        certificate = certify(problem, w)
        assert certificate.primal == pytest.approx(objective(X, y, name, k, 3.0, w), rel=1e-13)
        assert certificate.dual <= value * (1.0 + REFERENCE)
        assert certificate.gap >= certificate.primal - value * (1.0 + REFERENCE)
        if k == len(y):
            assert certificate.dual == pytest.approx(value, rel=REFERENCE)
    known = certify(problem, np.zeros(4), dual=0.25)
    assert known.gap == known.primal - 0.25


@pytest.mark.parametrize("method", ["interior_point", "bundle"])
def test_a_budget_that_runs_out_is_said_and_still_certified(method) -> None:
    X, y = examples("logistic")
    result = minimise(X, y, "logistic", 30, 1e3, method=method, tol=1e-9, max_iterations=4)
    assert result.status is Status.MAX_PASSES
    assert result.iterations == 4
    assert result.relative_gap > 1e-9
    assert result.dual <= optimum(X, y, "logistic", 30, 1e3)[0] <= result.primal * (1.0 + REFERENCE)


@pytest.mark.parametrize("limit", ["_MULTIPLICATIONS", "_BYTES"])
def test_wide_features_go_to_the_bundle(monkeypatch, limit) -> None:
    """Which of the two it was shows in the bound: cuts keep no u."""
    X, y = examples("hinge")
    assert minimise(X, y, "hinge", 30, 10.0).bound is not None
    monkeypatch.setattr(solving, limit, 100.0)
    assert minimise(X, y, "hinge", 30, 10.0, tol=1e-3).bound is None


@pytest.mark.parametrize("method", ["interior_point", "bundle"])
@pytest.mark.parametrize("scales", [(1e200, 1.0), (1.0, 1e200)])
def test_overflow_ends_a_run_and_says_so(method, scales) -> None:
    X, y = examples("square")
    result = minimise(scales[0] * X, scales[1] * y, "square", 5, 1.0, method=method)
    assert result.status is Status.NONFINITE


X, Y = examples("hinge", n=10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": Y[:-1]}, "there are 10 rows of features and targets of the shape"),
        ({"y": np.arange(10.0)}, "the loss hinge takes the targets -1 and 1"),
        ({"X": X[:0], "y": Y[:0]}, "at least one"),
        ({"X": X[:, :0]}, "the features have no columns"),
        ({"loss": "softmax"}, "there is no individual loss named 'softmax'"),
        ({"k": 0}, "k is 0; give a number from 1 to the 10 examples"),
        ({"k": 11}, "k is 11"),
        ({"C": 0.0}, "C is 0.0; give a positive number"),
        ({"C": np.inf}, "C is inf"),
        ({"method": "newton"}, "there is no method 'newton'; use auto, interior_point, bundle"),
        ({"tol": 0.0}, "tol is 0.0"),
    ],
)
def test_what_makes_no_problem_is_refused(changes, message) -> None:
    arguments = {"X": X, "y": Y, "loss": "hinge", "k": 3, "C": 1.0, **changes}
    with pytest.raises(InvalidProblemError, match=message):
        minimise(**arguments)


def test_what_is_not_finite_is_refused() -> None:
    with pytest.raises(NonFiniteError, match="the examples hold NaN or infinity"):
        minimise(np.where(X > 2.0, np.nan, X * 3.0) * np.nan, Y, "hinge", 3, 1.0)
    problem = AverageTopProblem.of(X, Y, "hinge", 3, 1.0)
    with pytest.raises(NonFiniteError, match="lower the step size"):
        certify(problem, np.full(4, np.nan))
    with pytest.raises(InvalidProblemError, match="give 4, one per feature"):
        certify(problem, np.zeros(3))


Z = np.concatenate([np.linspace(-3.0, 3.0, 41) + 0.01, [40.0, -40.0]])


def test_every_loss_is_tested() -> None:
    assert sorted(INDIVIDUAL_LOSSES) == sorted(EVERY_LOSS)


@pytest.mark.parametrize("name", EVERY_LOSS)
@pytest.mark.parametrize("target", [-1.0, 1.0])
def test_values_and_derivatives(name, target) -> None:
    loss, y = INDIVIDUAL_LOSSES[name], np.full(len(Z), target)
    pieces = loss.pieces(Z, y)
    np.testing.assert_allclose(pieces.losses(), loss_values(name, Z, y), rtol=1e-13, atol=1e-300)
    # Central differences: no score is within a step of a kink.
    step = 1e-6
    above, below = (loss_values(name, Z + sign * step, y) for sign in (1.0, -1.0))
    np.testing.assert_allclose(pieces.subgradients(), (above - below) / (2.0 * step), atol=1e-7)
    up, down = (loss.pieces(Z + sign * 1e-5, y).slopes for sign in (1.0, -1.0))
    np.testing.assert_allclose(pieces.curvatures, (up - down) / 2e-5, atol=1e-8)


@pytest.mark.parametrize("name", BINARY)
def test_a_score_of_zero_costs_one(name) -> None:
    loss = INDIVIDUAL_LOSSES[name]
    assert loss.binary
    assert loss.pieces(np.zeros(2), np.array([1.0, -1.0])).losses() == pytest.approx([1.0, 1.0])


def test_losses_by_name_and_value() -> None:
    hinge = INDIVIDUAL_LOSSES["hinge"]
    assert individual_loss("hinge") is hinge is individual_loss(hinge)
    for wrong in ("topk_hinge", type(hinge), 3):
        with pytest.raises(InvalidProblemError, match="use one of hinge, logistic, square, absolute"):
            individual_loss(wrong)


LOSSES = np.random.default_rng(3).exponential(size=20)
KS = [1, 1.3, 7.5, 13, 19.99, 20]


@pytest.mark.parametrize("k", KS)
def test_it_is_the_maximum_over_its_weights(k) -> None:
    n = len(LOSSES)
    program = linprog(-LOSSES, A_ub=np.ones((1, n)), b_ub=[1.0], bounds=[(0.0, 1.0 / k)] * n)
    assert average_top(LOSSES, k) == pytest.approx(-program.fun, rel=1e-12)
    assert average_top(LOSSES, k) == pytest.approx(mean_of_largest(LOSSES, k), rel=1e-14)
    p = top_weights(LOSSES, k)
    assert p @ LOSSES == pytest.approx(average_top(LOSSES, k), rel=1e-14)
    assert p.max() <= 1.0 / k
    assert p.sum() == pytest.approx(1.0, rel=1e-14)


def test_its_ends_are_the_maximum_and_the_average() -> None:
    assert average_top(LOSSES, 1) == LOSSES.max()
    assert average_top(LOSSES, len(LOSSES)) == pytest.approx(LOSSES.mean(), rel=1e-14)


@pytest.mark.parametrize("k", [2, 7, 20])
def test_the_top_k_loss_is_a_difference_of_two_averages(k) -> None:
    """Section 1: l_[k] = k AT_k - (k - 1) AT_(k-1)."""
    difference = k * average_top(LOSSES, k) - (k - 1) * average_top(LOSSES, k - 1)
    assert kth_largest(LOSSES, k) == pytest.approx(difference, rel=1e-12)
    assert average_top(LOSSES, k) >= kth_largest(LOSSES, k)


def test_of_equal_losses_the_first_count() -> None:
    np.testing.assert_allclose(top_weights(np.array([1.0, 2.0, 2.0, 2.0]), 2.5), [0.0, 0.4, 0.4, 0.2])


def variational(losses, k, t):
    """Return the braces of eq. 2, (1/n) sum [l_i - t]_+ + (k/n) t."""
    return np.maximum(losses - t, 0.0).mean() + k / len(losses) * t


@pytest.mark.parametrize("k", KS)
def test_the_variational_form_has_the_factor_that_the_paper_hides(k) -> None:
    """Erratum h4: the minimum of eq. 2 is (k/n) AT_k, and the k-th largest loss attains it."""
    n = len(LOSSES)
    at_least = min(variational(LOSSES, k, t) for t in np.concatenate([[0.0], LOSSES]))
    assert at_least == pytest.approx(k / n * mean_of_largest(LOSSES, k), rel=1e-13)
    assert variational(LOSSES, k, kth_largest(LOSSES, k)) == pytest.approx(at_least, rel=1e-13)


@pytest.mark.parametrize("name", EVERY_LOSS)
@pytest.mark.parametrize("k", [20, 28.5])
def test_equation_3_has_the_minimiser_at_the_mapped_C(name, k) -> None:
    """Eq. 3 itself goes to a general solver; only C is translated."""
    X, y = examples(name)
    n, C_3 = len(y), 20.0
    value, w = optimum(X, y, name, k, C_3, threshold_weight=k / n, excess_weight=1.0 / n)
    result = minimise(X, y, name, k, C_from_equation_3(C_3, k, n), tol=1e-10)
    np.testing.assert_allclose(result.w, w, atol=1e-4)
    assert k / n * result.primal == pytest.approx(value, rel=1e-7)


def test_the_maps_of_C() -> None:
    assert C_from_equation_3(C_to_equation_3(3.0, 7.5, 20), 7.5, 20) == pytest.approx(3.0)
    assert C_to_equation_3(3.0, 5, 20) == 12.0
    assert C_from_svm(0.5, 20) == 10.0


@pytest.mark.parametrize("k", [0.5, 21, "2", True, np.nan])
def test_other_k_are_refused(k) -> None:
    with pytest.raises(InvalidProblemError, match="give a number from 1 to the 20 examples"):
        average_top(LOSSES, k)


N = 40
ROWS, SIGNS = examples("hinge", n=N)
K = RBFKernel(0.5).matrix(ROWS, ROWS)
TARGETS = examples("square", n=N, seed=4)[1]


def mirrored(K):
    """Kernel of the examples (phi, y) and (-phi, -y).

    Scikit-learn's machines have a bias, which is 0 on such data by symmetry; nothing else changes.
    """
    return np.block([[K, -K], [-K, K]])


def fitted(k, C_3, loss="hinge", y=SIGNS):
    """Solve eq. 3 of the kernel K; gives the result and its scores."""
    result = minimise_with_kernel("precomputed", K, y, loss, k, C_from_equation_3(C_3, k, N), tol=1e-10)
    return result, K @ result.coefficients


@pytest.mark.parametrize("name", EVERY_LOSS)
def test_values_are_those_of_the_kernel_matrix(name) -> None:
    y = SIGNS if name in ("hinge", "logistic") else TARGETS
    result, scores = fitted(25, 4.0, name, y)
    c, C = result.coefficients, C_from_equation_3(4.0, 25, N)
    assert result.status is Status.SOLVED
    assert result.relative_gap <= 1e-10
    primal = mean_of_largest(loss_values(name, scores, y), 25) + c @ K @ c / (2.0 * C)
    assert result.primal == pytest.approx(primal, rel=1e-13)
    dual = result.bound.b - 0.5 * C * result.bound.u @ K @ result.bound.u
    assert result.dual == pytest.approx(dual, rel=1e-12)
    np.testing.assert_allclose(result.expansion.scores(K)[:, 0], scores, atol=1e-12)


@pytest.mark.parametrize("name", EVERY_LOSS)
def test_the_linear_kernel_is_the_linear_problem(name) -> None:
    rows, y = examples(name)
    linear = minimise(rows, y, name, 15, 2.0, tol=1e-10)
    kernel = minimise_with_kernel(LinearKernel(), rows, y, name, 15, 2.0, tol=1e-10)
    assert kernel.primal == pytest.approx(linear.primal, rel=1e-9)
    np.testing.assert_allclose(rows.T @ kernel.coefficients, linear.w, atol=1e-4)


def test_the_hinge_leaves_out_what_does_not_support() -> None:
    result = minimise_with_kernel("precomputed", K, SIGNS, "hinge", N, 100.0, tol=1e-6)
    scores = K @ result.coefficients
    assert 0 < len(result.expansion.support) < N
    beyond = SIGNS * scores > 1.0 + 1e-4
    assert beyond.any()
    assert not result.coefficients[beyond].any()


@pytest.mark.parametrize(("k", "C_3"), [(12, 1.0), (20, 50.0), (33.5, 3.0), (40, 3.0)])
def test_equations_5_and_6_and_the_dual_that_the_paper_lacks(k, C_3) -> None:
    """Erratum h5: (5) is (6) and k/n, both are k/n AT_k at their minimum, and the dual closes the gap."""
    result, f = fitted(k, C_3)
    norm, rho = f @ result.coefficients, rho_of(f, SIGNS, k)
    assert 0.0 <= rho <= 1.0
    fifth, sixth = equation_5(f, SIGNS, 1.0 - rho, k, C_3, norm), equation_6(f, SIGNS, rho, k, C_3, norm)
    assert fifth == pytest.approx(k / N * result.primal, rel=1e-12)
    assert fifth - sixth == pytest.approx(k / N, rel=1e-12)
    alpha = k / N * result.bound.p
    assert alpha.max() <= (1.0 + 1e-12) / N
    assert alpha.sum() <= (1.0 + 1e-12) * k / N
    assert dual_of_equation_6(K, SIGNS, alpha, k, C_3) == pytest.approx(sixth, abs=1e-9)
    # rho minimises (6) at f: no other one in [0, 1] is better.
    grid = np.linspace(0.0, 1.0, 101)
    assert sixth <= min(equation_6(f, SIGNS, other, k, C_3, norm) for other in grid) + 1e-12


def test_k_equal_to_n_is_the_svm() -> None:
    _, f = fitted(N, 5.0)
    svm = SVC(kernel="precomputed", C=5.0 / (2 * N), tol=1e-9).fit(
        mirrored(K), np.concatenate([SIGNS, -SIGNS])
    )
    np.testing.assert_allclose(svm.decision_function(mirrored(K))[:N], f, atol=1e-5)


@pytest.mark.parametrize(("k", "C_3"), [(12, 1.0), (20, 1.0), (30, 2.0)])
def test_with_rho_below_one_it_is_the_nu_svm(k, C_3) -> None:
    """LIBSVM divides scores by rho, so that the scale C_3 falls out."""
    _, f = fitted(k, C_3)
    rho = rho_of(f, SIGNS, k)
    assert 0.0 < rho < 1.0
    nu = NuSVC(nu=k / N, kernel="precomputed", tol=1e-9).fit(mirrored(K), np.concatenate([SIGNS, -SIGNS]))
    np.testing.assert_allclose(nu.decision_function(mirrored(K))[:N], f / rho, atol=1e-4)


def test_with_rho_at_one_it_is_not() -> None:
    """Erratum h5: C = 1 and K <= 1, or C k/n max K <= 1, is no technicality."""
    _, f = fitted(20, 50.0)
    assert rho_of(f, SIGNS, 20) == pytest.approx(1.0, abs=1e-9)
    nu = NuSVC(nu=0.5, kernel="precomputed", tol=1e-9).fit(mirrored(K), np.concatenate([SIGNS, -SIGNS]))
    assert np.abs(nu.decision_function(mirrored(K))[:N] - f).max() > 0.1
    assert not is_nu_svm(K, 20, 50.0)


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("k", [15, 30, 39.5])
def test_the_condition_for_nu_is_sufficient(scale, k) -> None:
    """Where `is_nu_svm` says so, rho <= 1 costs nothing: the free problem stays within it."""
    C_3 = N / (k * scale * np.diag(K).max())
    assert is_nu_svm(scale * K, k, C_3 * (1.0 - 1e-12))
    assert not is_nu_svm(scale * K, k, C_3 * 1.01)
    C = C_from_equation_3(C_3, k, N)
    result = minimise_with_kernel("precomputed", scale * K, SIGNS, "hinge", k, C, tol=1e-10)
    assert rho_of(scale * K @ result.coefficients, SIGNS, k) <= 1.0
    # Weights that sum to 1 say that the threshold 1 - rho >= 0 does not bind.
    assert result.bound.p.sum() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(("k", "C_3"), [(10, 5.0), (20, 1.0), (40, 5.0)])
def test_the_absolute_loss_is_nu_svr(k, C_3) -> None:
    """Erratum h5: with nu = k/n, not for the average alone, which is nu = 1."""
    _, f = fitted(k, C_3, "absolute", TARGETS)
    svr = NuSVR(nu=k / N, C=C_3 / (2 * N), kernel="precomputed", tol=1e-9)
    svr.fit(mirrored(K), np.concatenate([TARGETS, -TARGETS]))
    np.testing.assert_allclose(svr.predict(mirrored(K))[:N], f, atol=1e-4)


def test_one_factorisation_serves_many_calls() -> None:
    features = KernelFeatures.of("rbf", ROWS)
    for k in (30, 40):
        again = minimise_with_kernel(features, ROWS, SIGNS, "hinge", k, 5.0)
        np.testing.assert_array_equal(
            again.coefficients, minimise_with_kernel("rbf", ROWS, SIGNS, "hinge", k, 5.0).coefficients
        )


def test_a_collapsed_machine_has_no_support() -> None:
    twice, both = np.vstack([ROWS, ROWS]), np.concatenate([SIGNS, -SIGNS])
    result = minimise_with_kernel("rbf", twice, both, "hinge", 2, 10.0)
    assert result.collapsed
    assert not result.coefficients.any()
    assert not result.expansion.scores(ROWS).any()
    assert result.primal == pytest.approx(1.0)


def test_indefinite_kernels_are_refused() -> None:
    with pytest.raises(InvalidProblemError, match="not positive semi-definite"):
        minimise_with_kernel("precomputed", -np.eye(N), SIGNS, "hinge", 3, 1.0)
    assert C_to_equation_3(1.0, 20, N) == 2.0
