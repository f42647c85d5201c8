"""Figure 1's toys: the recipe, the released descent, and what the paper argues with them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reproduce.average_top.released import Released, released_descent
from tests.reproduce.average_top.toys import TOYS, UNIT, fresh_errors, training_errors, with_constant
from tests.reproduce.formats import Examples
from topline.solvers.average_top import AverageTopProblem, minimise


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
