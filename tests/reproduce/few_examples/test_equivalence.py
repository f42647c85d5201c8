"""Theorems 3.3 and 3.4 of the thesis as functions, both ways, with the counterexample."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reproduce.few_examples.equivalence import (
    most_favourable_weights,
    rho,
    svm_plus_from_weights,
    weights_from_svm_plus,
)
from tests.solvers.privileged.problems import linear, noisy_examples, rbf
from topline import InvalidProblemError
from topline.solvers.privileged import solve_svm_plus, solve_weighted_svm
from topline.solvers.privileged.machines import bias_interval


def distance(K, first, second):
    """|w - w'| of two coefficient vectors."""
    change = first - second
    return np.sqrt(max(change @ K @ change, 0.0))


@pytest.mark.parametrize("kernel", [linear, rbf])
@pytest.mark.parametrize(("C", "gamma"), [(0.1, 1.0), (1.0, 0.1), (1.0, 30.0), (20.0, 1.0)])
def test_weights_from_svm_plus_give_the_same_w(kernel, C, gamma) -> None:
    """Theorem 3.3 to 1e-6, and Corollary 3.3: these weights have rho >= 0."""
    for seed in range(3):
        X, y, _ = noisy_examples(seed, n=50)
        # Informative privileged features, so that the solution is not the trivial w = 0.
        privileged = np.column_stack([np.maximum(0.0, 1.0 - 2.0 * y * X[:, 0]), X[:, 1]])
        K = kernel(X)
        plus = solve_svm_plus(K, kernel(privileged), y, C, gamma)
        c = weights_from_svm_plus(plus)
        weighted = solve_weighted_svm(K, y, c)
        size = np.sqrt((plus.alpha * y) @ K @ (plus.alpha * y))
        assert size > 0.01
        assert distance(K, plus.alpha * y, weighted.alpha * y) <= 1e-6 * max(size, 1.0)
        assert rho(c, weighted.slack) >= -1e-8 * c.sum()
        # With the bias of SVM+ the classifiers are the same; the weighted SVM's own may be another optimum.
        own = 0.5 * size**2 + c @ plus.slack
        assert own == pytest.approx(weighted.primal, rel=1e-7)


def test_svm_plus_from_weights_has_the_same_solution() -> None:
    """Theorem 3.4, sufficiency: (3.8) and (3.9) are optimal, and w~ = 1, b~ = <c, xi> / <c, 1>."""
    for seed in range(5):
        X, y, _ = noisy_examples(seed, n=40)
        K = rbf(X)
        plain = solve_weighted_svm(K, y, 2.0 * np.ones(40))
        # Lighter where the weight is not used up, which keeps the solution (Prop. 3.2) and raises rho.
        c = plain.alpha + 0.1 * plain.beta
        weighted = solve_weighted_svm(K, y, c)
        assert distance(K, plain.alpha * y, weighted.alpha * y) <= 1e-6
        built = svm_plus_from_weights(c, weighted.slack)
        assert pytest.approx(rho(c, weighted.slack)) == built.gamma > 0
        assert pytest.approx(c.mean()) == built.C
        features = built.X_privileged
        plus = solve_svm_plus(K, features @ features.T, y, built.C, built.gamma)
        assert distance(K, plus.alpha * y, weighted.alpha * y) <= 1e-6
        w = features.T @ plus.privileged_coefficients
        np.testing.assert_allclose(w, built.privileged_weight, atol=1e-6)
        assert plus.privileged_bias == pytest.approx(built.privileged_bias, abs=1e-6)
        np.testing.assert_allclose(plus.correction, weighted.slack, atol=1e-6)


def counterexample():
    x, y, c = np.array([1.0, 2.0, 3.0]), np.array([1.0, -1.0, 1.0]), np.array([4.0, 6.0, 2.0])
    return x, y, c, solve_weighted_svm(np.outer(x, x), y, c)


def test_the_counterexample_has_no_svm_plus() -> None:
    """Section 3.4.4: w = -2, b = 3, xi = (0, 0, 4), rho = -8, and no other weights do better than -16/3."""
    x, y, c, result = counterexample()
    assert x @ (result.alpha * y) == pytest.approx(-2.0, abs=1e-8)
    assert result.bias == pytest.approx(3.0, abs=1e-8)
    np.testing.assert_allclose(result.slack, [0.0, 0.0, 4.0], atol=1e-8)
    assert rho(c, result.slack) == pytest.approx(-8.0, abs=1e-7)
    with pytest.raises(InvalidProblemError, match=r"rho\(c, xi\) is -8 < 0.*no SVM\+ has such weights"):
        svm_plus_from_weights(c, result.slack)
    # All alpha with this w and y^T alpha = 0 are (t + 2, 2 t + 2, t), t >= 0: rho = -(4 t + 16) / 3.
    best, value = most_favourable_weights(np.outer(x, x), y, result)
    np.testing.assert_allclose(best, [2.0, 2.0, 0.0], atol=1e-7)
    assert value == pytest.approx(-16.0 / 3.0, abs=1e-6)


def test_weights_of_one_solution_have_several_sums() -> None:
    """Definition 3.1 of the thesis holds the sum of alpha fixed, and so misses (2, 2, 0) beside (4, 6, 2)."""
    x, y, c, result = counterexample()
    K, others = np.outer(x, x), np.array([2.0, 2.0, 0.0])
    other = solve_weighted_svm(K, y, others)
    assert x @ (other.alpha * y) == pytest.approx(-2.0, abs=1e-6)
    assert other.bias == pytest.approx(3.0, abs=1e-6)
    assert (result.alpha.sum(), other.alpha.sum()) == pytest.approx((12.0, 4.0), abs=1e-5)
    # By the objective of either weights, with nothing of the solver: no point of a fine grid is below it.
    w, b = np.meshgrid(np.linspace(-4.0, 0.0, 81), np.linspace(1.0, 5.0, 81), indexing="ij")
    hinges = [np.maximum(0.0, 1.0 - sign * (w * point + b)) for point, sign in zip(x, y, strict=True)]
    for weights in (c, others):
        values = 0.5 * w**2 + sum(weight * hinge for weight, hinge in zip(weights, hinges, strict=True))
        at = np.unravel_index(values.argmin(), values.shape)
        assert (w[at], b[at]) == pytest.approx((-2.0, 3.0))


def test_most_favourable_weights_keep_the_solution_and_raise_rho() -> None:
    for seed in range(4):
        X, y, _ = noisy_examples(seed, n=30)
        K = rbf(X)
        c = np.random.default_rng(seed).random(30) + 0.2
        result = solve_weighted_svm(K, y, c)
        best, value = most_favourable_weights(K, y, result)
        assert value >= rho(c, result.slack) - 1e-9
        again = solve_weighted_svm(K, y, best)
        assert distance(K, again.alpha * y, result.alpha * y) <= 1e-6
        # K has full rank, so alpha is unique, and the best weights are alpha itself (Corollary 3.2).
        np.testing.assert_allclose(best, result.alpha, atol=1e-6)


def test_rho_without_a_bound_gives_weights_with_a_positive_one() -> None:
    """Two equal examples of both classes: the same weight for both changes nothing, however large."""
    x, y = np.array([-2.0, -1.0, 0.0, 0.0, 1.0, 2.0]), np.array([-1.0, -1.0, -1.0, 1.0, 1.0, 1.0])
    K = np.outer(x, x)
    c = np.array([1.0, 1.0, 0.01, 0.01, 1.0, 1.0])
    result = solve_weighted_svm(K, y, c)
    assert rho(c, result.slack) < 0.0
    best, value = most_favourable_weights(K, y, result)
    assert value > 0.0
    again = solve_weighted_svm(K, y, best)
    assert distance(K, again.alpha * y, result.alpha * y) <= 1e-6
    # And then there is an SVM+ with this solution.
    built = svm_plus_from_weights(best, result.slack)
    features = built.X_privileged
    plus = solve_svm_plus(K, features @ features.T, y, built.C, built.gamma)
    assert distance(K, plus.alpha * y, result.alpha * y) <= 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_alpha_alone_and_more_weight_on_easy_examples_are_equivalent_weights(seed) -> None:
    """Prop. 3.2 and Cor. 3.2: (w, b, xi) stays optimal for c = alpha*, and with more where the slack is 0."""
    X, y, _ = noisy_examples(seed, n=40)
    K = rbf(X)
    result = solve_weighted_svm(K, y, np.random.default_rng(seed).random(40) + 0.1)
    easy = np.where(result.slack == 0.0, 5.0, 0.0)
    size = (result.alpha * y) @ K @ (result.alpha * y)
    for c in (result.alpha, result.alpha + easy):
        again = solve_weighted_svm(K, y, c)
        assert distance(K, again.alpha * y, result.alpha * y) <= 1e-6
        assert 0.5 * size + c @ result.slack == pytest.approx(again.primal, rel=1e-8)


def test_the_bias_of_a_weighted_svm_need_not_be_unique_and_that_of_svm_plus_is() -> None:
    """Theorems 3.1 and 3.2 on two examples: weights balance, so b may move; SVM+ has one of these."""
    x, y = np.array([-1.0, 1.0]), np.array([-1.0, 1.0])
    K = np.outer(x, x)
    privileged = np.array([[0.0], [1.0]])
    plus = solve_svm_plus(K, privileged @ privileged.T, y, 0.1, 0.02)
    c = weights_from_svm_plus(plus)
    weighted = solve_weighted_svm(K, y, c)
    centred = weighted.scores - weighted.bias
    assert distance(K, plus.alpha * y, weighted.alpha * y) <= 1e-6
    low, high = bias_interval(centred, y, c)
    assert high - low > 0.5
    for b in np.linspace(low, high, 5):
        slack = np.maximum(0.0, 1.0 - y * (centred + b))
        assert weighted.primal == pytest.approx(weighted.primal - c @ weighted.slack + c @ slack, rel=1e-9)
    assert low - 1e-9 <= plus.bias <= high + 1e-9

    def least(b):
        """P of SVM+ at its w and w~, with b and the least b~ that is feasible for it."""
        correction = plus.correction - plus.privileged_bias
        shift = np.max(np.maximum(0.0, 1.0 - y * (centred + b)) - correction)
        return plus.primal + plus.C * len(y) * (shift - plus.privileged_bias)

    assert least(plus.bias) == pytest.approx(plus.primal, rel=1e-9)
    assert least(plus.bias - 0.05) > plus.primal + 1e-4
    assert least(plus.bias + 0.05) > plus.primal + 1e-4


def test_the_borderline_of_equal_weights_has_gamma_zero() -> None:
    X, y, _ = noisy_examples(1, n=30)
    result = solve_weighted_svm(rbf(X), y, np.ones(30))
    built = svm_plus_from_weights(np.ones(30), result.slack)
    assert built.gamma == pytest.approx(0.0, abs=1e-12)
    assert pytest.approx(1.0) == built.C


@pytest.mark.parametrize("c", [[0.0, 0.0], [1.0, -1.0]])
def test_weights_that_are_none(c) -> None:
    with pytest.raises(InvalidProblemError, match="negative or all zero"):
        svm_plus_from_weights(c, [0.0, 1.0])


@pytest.mark.data
@pytest.mark.slow
def test_the_weighted_svm_replicates_svm_plus_on_digits(shared_data) -> None:
    """Figure 3.6, left, in kind: 5 against 8, small pictures, and large ones as privileged features."""
    with np.load(shared_data / "usps" / "usps.npz") as file:
        pixels, digits = file["X_train"] / 2000.0 + 0.5, file["y_train"]
    kept = np.flatnonzero(np.isin(digits, (5, 8)))[:100]
    large = pixels[kept]
    small = large.reshape(-1, 4, 4, 4, 4).mean(axis=(2, 4)).reshape(len(kept), 16)
    y = np.where(digits[kept] == 8, 1.0, -1.0)
    K = rbf(small)
    for C, gamma in ((1.0, 0.1), (10.0, 1.0), (100.0, 1.0)):
        plus = solve_svm_plus(K, rbf(large / 4.0), y, C, gamma)
        weighted = solve_weighted_svm(K, y, weights_from_svm_plus(plus))
        assert plus.relative_gap <= 1e-8
        assert distance(K, plus.alpha * y, weighted.alpha * y) <= 1e-6
