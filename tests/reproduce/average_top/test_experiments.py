"""Experiments, toys and theorems of the paper on the average top-k loss."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize_scalar

from tests.reference.average_top import loss_values, objective, optimum
from tests.reproduce.average_top.experiments import (
    Descent,
    Optimum,
    Split,
    as_they_are,
    compare,
    error_by_k,
    grid_of_C,
    grid_of_k,
    in_unit_box,
    misclassification,
    prepared,
    root_mean_square,
    sinc,
    to_unit_interval,
)
from tests.reproduce.average_top.stochastic import Released, released_descent, stochastic_gradient
from tests.reproduce.average_top.toys import TOYS, UNIT, fresh_errors, training_errors, with_constant
from tests.reproduce.formats import Examples
from tests.solvers.average_top.problems import EVERY_LOSS, examples
from topline import InvalidProblemError, NonFiniteError
from topline.solvers.average_top import AverageTopProblem, minimise
from topline.solvers.average_top.problem import individual_loss
from topline.solvers.typing import Float64Array


def test_splits_are_halves_and_quarters() -> None:
    split = Split.random(103, seed=4)
    assert [len(part) for part in (split.train, split.validation, split.test)] == [51, 25, 27]
    assert sorted(np.concatenate([split.train, split.validation, split.test])) == list(range(103))
    np.testing.assert_array_equal(split.test, Split.random(103, seed=4).test)
    assert not np.array_equal(split.test, Split.random(103, seed=5).test)


def test_grids() -> None:
    assert grid_of_C() == pytest.approx([10.0**power for power in range(-5, 6)])
    ks = grid_of_k(345)
    assert (ks[0], ks[-1], len(ks)) == (1, 345, 10)
    assert np.ptp(np.diff(np.log(ks[3:]))) < 0.1
    assert grid_of_k(3, 20) == (1, 2, 3)


def test_columns_are_standardised_by_training_rows_alone() -> None:
    X = np.random.default_rng(0).uniform(3.0, 9.0, (20, 3))
    X[:, 1] = 5.0
    rows = prepared(X, np.arange(10))
    np.testing.assert_allclose(rows[:10, [0, 2]].mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(rows[:10, [0, 2]].std(axis=0), 1.0)
    assert np.abs(rows[10:, 0].mean()) > 1e-3
    assert not rows[:, 1].any()
    assert (rows[:, -1] == 1.0).all()


def test_other_scales_of_features() -> None:
    X = np.array([[1.0, 5.0], [3.0, 5.0], [9.0, 7.0]])
    np.testing.assert_array_equal(as_they_are(X, np.arange(2)), np.column_stack([X, np.ones(3)]))
    boxed = in_unit_box(X, np.arange(2))
    np.testing.assert_array_equal(boxed, [[-1.0, -1.0, 1.0], [1.0, -1.0, 1.0], [7.0, 3.0, 1.0]])


def test_selection_on_test_rows_is_never_worse_on_them() -> None:
    X, y = examples("logistic", n=80, d=2, noise=1.0)
    for seed in range(3):
        own, honest = (
            compare(X[:, :2], y, "logistic", seed, Cs=(1e-3, 1.0), ks=(20, 40), on_test=on_test).average_top
            for on_test in (True, False)
        )
        assert own.test <= honest.test
        assert own.validation == own.test


def test_scores_of_zero_are_errors_or_a_class() -> None:
    scores, y = np.array([0.0, 0.0, 2.0, -1.0]), np.array([1.0, -1.0, 1.0, 1.0])
    assert misclassification(scores, y) == 0.75
    assert misclassification(scores, y, tie=1.0) == 0.5
    assert misclassification(scores, y, tie=-1.0) == 0.5
    assert root_mean_square(np.array([3.0, 4.0])) == pytest.approx(np.sqrt(12.5))
    np.testing.assert_allclose(to_unit_interval(np.array([2.0, 4.0, 3.0])), [0.0, 1.0, 0.5])
    np.testing.assert_array_equal(to_unit_interval(np.full(3, 7.0)), np.zeros(3))


@pytest.mark.parametrize("name", ["hinge", "square"])
def test_a_comparison_is_what_validation_selects(name) -> None:
    """Every pair of the grid is trained here again, by the public call."""
    X, y = examples(name, n=80, d=2, noise=0.5)
    X, Cs, ks, seed = X[:, :2], (0.1, 10.0), (1, 12, 40), 3
    split = Split.random(80, seed)
    rows = prepared(X, split.train)

    def error(w, part):
        scores = rows[part] @ w
        majority = 1.0 if y[split.train].sum() >= 0.0 else -1.0
        signs = np.where(scores == 0.0, majority, np.sign(scores))
        return np.mean(signs != y[part]) if name == "hinge" else np.sqrt(np.mean((scores - y[part]) ** 2))

    comparison = compare(X, y, name, seed, Cs=Cs, ks=ks)
    for choice, k in ((comparison.maximum, 1), (comparison.average, 40)):
        assert choice.k == k
    best = comparison.average_top
    assert best.validation == min(
        best.validation, comparison.maximum.validation, comparison.average.validation
    )
    for choice in (comparison.maximum, comparison.average, best):
        w = minimise(rows[split.train], y[split.train], name, choice.k, choice.C).w
        assert choice.validation == pytest.approx(error(w, split.validation), abs=1e-9)
        assert choice.test == pytest.approx(error(w, split.test), abs=1e-9)
        for C in Cs:
            other = minimise(rows[split.train], y[split.train], name, choice.k, C).w
            assert choice.validation <= error(other, split.validation) + 1e-9
    assert compare(X, y, name, seed, Cs=Cs, ks=ks) == comparison


def test_grids_of_C_grow_where_their_end_is_best() -> None:
    """Without noise more C is better and better; one value of C leaves nothing to extend."""
    X, y = examples("square", n=60, d=2, noise=0.0)
    grown = compare(X[:, :2], y, "square", 0, Cs=(1e-2, 1e-1), ks=(30,)).average
    assert pytest.approx(100.0) == grown.C
    assert compare(X[:, :2], y, "square", 0, Cs=(1e-2,), ks=(30,)).average.C == 1e-2


def test_a_collapsed_maximum_counts_as_the_tie_rule_says() -> None:
    X, y = examples("hinge", n=200, d=2, noise=2.0)
    y[:40] = 1.0
    majority, strict = (
        compare(X[:, :2], y, "hinge", 0, Cs=(1.0,), ks=(1,), ties=ties).maximum
        for ties in ("majority", "error")
    )
    assert majority.collapsed
    assert strict.collapsed
    assert strict.test == 1.0
    split = Split.random(200, 0)
    larger = np.sign(y[split.train].sum())
    assert majority.test == pytest.approx(np.mean(y[split.test] != larger))


def test_the_paper_trains_by_descent() -> None:
    """Which does not collapse: it started from all losses and stops before the maximum has its way."""
    X, y = examples("hinge", n=200, d=2, noise=1.0)
    exact, descent = (
        compare(X[:, :2], y, "hinge", 0, Cs=(1.0,), ks=(1,), ties="error", train=train).maximum
        for train in (Optimum(), Descent(epochs=20))
    )
    assert exact.collapsed
    assert exact.test == 1.0
    assert not descent.collapsed
    assert descent.test < 0.4


def test_lines_of_the_figures() -> None:
    X, y = examples("logistic", n=60, d=2)
    line = error_by_k(X[:, :2], y, "logistic", 0, ks=(5, 30))
    assert [k for k, _ in line] == [5, 30]
    assert line[1][1] == compare(X[:, :2], y, "logistic", 0, Cs=(100.0,), ks=(30,)).average.test


def test_sinc_can_be_fitted_to_its_noise() -> None:
    X, y = sinc(np.random.default_rng(0), n=400)
    result = minimise(X, y, "square", 400, 1e4)
    assert root_mean_square(X @ result.w - y) == pytest.approx(0.1, rel=0.15)


@pytest.mark.data
def test_australian_is_as_hard_as_the_paper_says(shared_data: Path) -> None:
    """Table 1 has 14.27 (3.22) % for the average logistic loss over ten splits; two splits must come near."""
    with gzip.open(shared_data / "australian" / "australian.tsv.gz", "rt") as lines:
        table = np.loadtxt(lines, skiprows=1)
    X, y = table[:, :-1], np.where(table[:, -1] > 0.0, 1.0, -1.0)
    errors = [compare(X, y, "logistic", seed, Cs=(1.0, 100.0), ks=(173, 345)).average.test for seed in (0, 1)]
    assert 0.09 < np.mean(errors) < 0.2


def test_problem_of_one_example() -> None:
    problem = AverageTopProblem.of(np.ones((1, 1)), np.ones(1), "hinge", 1, 4.0)
    assert minimise(problem.X, problem.y, "hinge", 1, 4.0).w == pytest.approx([1.0], rel=1e-6)


def derivative(name, z, y):
    return {
        "hinge": lambda: -y if y * z < 1.0 else 0.0,
        "logistic": lambda: -y / (1.0 + np.exp(y * z)) / np.log(2.0),
        "square": lambda: 2.0 * (z - y),
        "absolute": lambda: np.sign(z - y),
    }[name]()


def equation_4(X, y, name, k, C_3, epochs, step, seed):
    """Run the paper's updates as they are printed; gives the mean of w, the last w and lambda."""
    random = np.random.default_rng(seed)
    n, d = X.shape
    w, lam, seen, t = np.zeros(d), 0.0, [], 0
    for _ in range(epochs):
        for i in random.permutation(n):
            t += 1
            eta = min(step / np.sqrt(t), C_3)
            z = X[i] @ w
            counts = float(loss_values(name, z, y[i]) > lam)
            w = w - eta * (derivative(name, z, y[i]) * X[i] * counts + w / C_3)
            lam = max(lam - eta * (k / n - counts), 0.0)
            seen.append(w)
    return np.mean(seen, axis=0), w, lam


@pytest.mark.parametrize("name", EVERY_LOSS)
@pytest.mark.parametrize("k", [10, 27.5])
@pytest.mark.parametrize("C", [0.01, 5.0])
@pytest.mark.covering(2)
def test_steps_are_those_of_equation_4(name, k, C) -> None:
    """With the small C the first steps are cut to C_3."""
    X, y = examples(name)
    problem = AverageTopProblem.of(X, y, name, k, C)
    mean, last, threshold = equation_4(X, y, name, k, C * 40 / k, epochs=3, step=0.2, seed=7)
    run = stochastic_gradient(problem, epochs=3, step=0.2, seed=7)
    np.testing.assert_allclose(run.w, mean, rtol=1e-9, atol=1e-12)
    assert run.threshold == pytest.approx(threshold, rel=1e-9, abs=1e-12)
    other = stochastic_gradient(problem, epochs=3, step=0.2, seed=7, averaged=False)
    np.testing.assert_allclose(other.w, last, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", EVERY_LOSS)
@pytest.mark.parametrize("k", [25, 40])
def test_it_comes_near_the_optimum_and_says_how_near(name, k) -> None:
    X, y = examples(name)
    problem = AverageTopProblem.of(X, y, name, k, 5.0)
    value, _ = optimum(X, y, name, k, 5.0)
    run = stochastic_gradient(problem, epochs=300, step=0.3)
    assert run.primal == pytest.approx(objective(X, y, name, k, 5.0, run.w), rel=1e-13)
    assert value * (1.0 - 1e-6) <= run.primal <= 1.03 * value
    assert run.dual <= value * (1.0 + 1e-6)
    exact = minimise(X, y, name, k, 5.0)
    known = stochastic_gradient(problem, epochs=300, step=0.3, dual=exact.dual)
    assert known.gap == run.primal - exact.dual
    if k == 40:
        # For k = n the bound that needs no exact run is the optimum itself.
        assert run.gap == pytest.approx(known.gap, abs=2e-6 * value)


def test_what_it_cannot_do_is_refused() -> None:
    X, y = examples("square")
    problem = AverageTopProblem.of(X, y, "square", 40, 5.0)
    with pytest.raises(NonFiniteError, match="lower the step size"):
        stochastic_gradient(problem, step=1e3)
    for bad in ({"epochs": 0}, {"step": 0.0}, {"step": np.inf}):
        with pytest.raises(InvalidProblemError, match="give positive numbers"):
            stochastic_gradient(problem, **bad)
    with pytest.raises(InvalidProblemError, match=r"give X.toarray\(\)"):
        stochastic_gradient(AverageTopProblem.of(sparse.csr_matrix(X), y, "square", 40, 5.0))


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
@pytest.mark.parametrize("toy", TOYS)
def test_toys_are_best_between_the_maximum_and_the_average(toy: str, loss: str) -> None:
    """The paper's k = 10 keeps the small group: the outlier ruins k = 1, and k = n gives up the few."""
    for seed in range(3):
        first, tenth, last = (error for _, error in fresh_errors(toy, loss, seed, ks=(1, 10, 200)))
        assert tenth < 0.01
        assert min(first, last) > tenth + 0.005


@pytest.mark.parametrize(("toy", "shares"), [("multimodal", [100, 100]), ("imbalanced", [4, 196])])
def test_a_toy_has_its_outlier_and_its_groups(toy: str, shares: list[int]) -> None:
    X, y = TOYS[toy].draw(np.random.default_rng(0))
    clean, _ = TOYS[toy].draw(np.random.default_rng(0), outlier=False)
    assert [int((y == sign).sum()) for sign in (-1.0, 1.0)] == shares
    np.testing.assert_array_equal(np.flatnonzero((clean != X).any(axis=1)), [0])
    many, signs = TOYS[toy].draw(np.random.default_rng(1), 20_000, outlier=False)
    np.testing.assert_allclose(many[signs == -1].var(axis=0), 0.05, rtol=0.3)


def test_a_score_of_zero_is_the_class_one_on_the_authors_points() -> None:
    X, y = TOYS["multimodal"].draw(np.random.default_rng(0))
    ((_, collapsed),) = training_errors(Examples(X[:150], y[:150]), "hinge", (1,), descent=False)
    assert collapsed == 50 / 150  # w = 0, and the points of the other class are wrong


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_the_released_descent_comes_to_the_optimum_given_time(loss: str) -> None:
    """Its objective is C_3 times eq. 3, whose minimiser the library certifies."""
    X, y = TOYS["multimodal"].draw(np.random.default_rng(0))
    rows, k, C = with_constant(X), 60, 1.0
    expected = minimise(rows, y, loss, k, C * UNIT[loss], tol=1e-8).w
    found = released_descent(rows, y, loss, k, C * len(y) / k, epochs=2000, step=1e-2)
    np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())
    short = released_descent(rows, y, loss, k, C * len(y) / k, epochs=1, step=1e-5)
    assert np.linalg.norm(short - expected) > 0.5 * np.linalg.norm(expected)
    problem = AverageTopProblem.of(rows, y, loss, k, C)
    again, collapsed = Released(2000, 1e-2)(problem)
    np.testing.assert_array_equal(again, found)
    assert not collapsed
    plain, _ = Released(1, 1e-2, scaled=False)(problem)
    np.testing.assert_array_equal(plain, released_descent(rows, y, loss, k, C, epochs=1, step=1e-2))


#: Scores between which the least risk of a loss is sought.
_RANGE = 60.0


def sufficient_share(eta: Float64Array, mass: Float64Array, loss: Any) -> float:
    """Give E*, the least risk E l(y f(x)) over all f: for k/n above it AT_k is calibrated (part i).

    For the hinge it is twice the error of the Bayes rule.  `loss` is "hinge" or "logistic".
    """
    loss = individual_loss(loss)
    if not loss.binary:
        raise InvalidProblemError(f"the loss {loss.name} is not one of signs; use hinge or logistic")
    signs = np.array([1.0, -1.0])

    def risk(z: float, share: float) -> float:
        both = loss.pieces(np.full(2, z), signs).losses()
        return float(share * both[0] + (1.0 - share) * both[1])

    least = [
        minimize_scalar(risk, bounds=(-_RANGE, _RANGE), args=(share,), options={"xatol": 1e-10}).fun
        for share in np.asarray(eta, dtype=np.float64)
    ]
    return float(np.asarray(mass) @ np.array(least))


def necessary_share(eta: Float64Array, mass: Float64Array) -> float:
    """Give the share k/n below which AT_k cannot be calibrated (part ii).

    It is the mass-weighted min(eta, 1 - eta) where eta is not 1/2: the error of the Bayes rule, if it is
    nowhere undecided.
    """
    eta = np.asarray(eta, dtype=np.float64)
    return float(np.asarray(mass) @ np.where(eta == 0.5, 0.0, np.minimum(eta, 1.0 - eta)))


def error_bound(
    n: int, mu: float, eps: float, C_3: float, kappa: float, norm: float, approximation: float = 0.0
) -> tuple[float, float]:
    """Give (excess, probability) of theorem 2: the error exceeds Bayes' by `excess` with that chance at most.

    For eq. 6 with k = ceil(n (E_h(f_H) + mu)), 0 < mu < 1 - E_h(f_H), and 0 < eps <= 1; `kappa` is the
    largest sqrt(k(x, x)), `norm` that of f_H, the best function of the kernel, and `approximation` what its
    hinge risk has above the least.
    """
    if not (n >= 1 and mu > 0.0 and 0.0 < eps <= 1.0 and C_3 > 0.0):
        raise InvalidProblemError(
            f"n, mu, eps and C are {n}, {mu}, {eps} and {C_3}; give positive numbers, eps at most 1"
        )
    constant = 1.0 + kappa * (2.0 * math.sqrt(2.0 * C_3) + 4.0 * norm)
    excess = mu + approximation + eps + constant / (math.sqrt(n) * mu)
    return excess, min(1.0, 2.0 * math.exp(-n * mu**2 * eps**2 / constant**2))


def k_for_error_bound(n: int, hinge_risk: float, mu: float) -> int:
    """Give the k that theorem 2 takes: ceil(n (E_h(f_H) + mu))."""
    return math.ceil(n * (hinge_risk + mu))


#: Pr(y = 1 | x) and the mass of four points: E* is 0.4 for the hinge, the Bayes error 0.2.
ETA = np.array([0.9, 0.7, 0.25, 0.1])
MASS = np.array([0.3, 0.2, 0.2, 0.3])
SIZE = 200


def population_minimiser(loss, share):
    """Minimise eq. 7 over all functions of the four points: one indicator each, and next to no penalty.

    200 examples have exactly the probabilities of the distribution, so that means are expectations.
    """
    counts = np.rint(SIZE * MASS).astype(int)
    X = np.repeat(np.eye(4), counts, axis=0)
    y = np.concatenate(
        [np.repeat([1.0, -1.0], [round(c * e), c - round(c * e)]) for c, e in zip(counts, ETA, strict=True)]
    )
    return minimise(X, y, loss, share * SIZE, 1e7, tol=1e-9)


def test_the_least_risks() -> None:
    assert sufficient_share(ETA, MASS, "hinge") == pytest.approx(2.0 * necessary_share(ETA, MASS), rel=1e-6)
    entropy = -(ETA * np.log2(ETA) + (1.0 - ETA) * np.log2(1.0 - ETA))
    assert sufficient_share(ETA, MASS, "logistic") == pytest.approx(MASS @ entropy, rel=1e-8)
    assert necessary_share(ETA, MASS) == pytest.approx(0.17)
    assert necessary_share(np.array([0.5, 0.9]), np.array([0.5, 0.5])) == pytest.approx(0.05)
    with pytest.raises(InvalidProblemError, match="use hinge or logistic"):
        sufficient_share(ETA, MASS, "square")


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
@pytest.mark.parametrize("above", [0.02, 0.2])
def test_above_the_least_risk_the_signs_are_those_of_bayes(loss, above) -> None:
    """Theorem 1 (i)."""
    result = population_minimiser(loss, min(sufficient_share(ETA, MASS, loss) + above, 1.0))
    assert not result.collapsed
    np.testing.assert_array_equal(np.sign(result.w), np.sign(ETA - 0.5))


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_below_the_bayes_error_it_cannot_be_calibrated(loss) -> None:
    """Theorem 1 (ii): here the optimum is f = 0 altogether."""
    assert population_minimiser(loss, 0.9 * necessary_share(ETA, MASS)).collapsed


def test_the_bound_of_theorem_2() -> None:
    """Its terms by hand: C_kH = 1 * (2 sqrt(2) + 8) at C = 1 and |f_H| = 2."""
    constant = 1.0 + 2.0 * math.sqrt(2.0) + 8.0
    excess, chance = error_bound(10**6, 0.1, 0.5, 1.0, 1.0, 2.0, approximation=0.01)
    assert excess == pytest.approx(0.1 + 0.01 + 0.5 + constant / 100.0)
    assert chance == pytest.approx(2.0 * math.exp(-(10**6) * 0.0025 / constant**2))
    assert error_bound(10, 0.1, 0.5, 1.0, 1.0, 2.0)[1] == 1.0
    assert k_for_error_bound(100, 0.301, 0.1) == 41
    with pytest.raises(InvalidProblemError, match="give positive numbers"):
        error_bound(10, 0.0, 0.5, 1.0, 1.0, 2.0)
