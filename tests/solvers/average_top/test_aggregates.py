"""The average of the k largest, by sorting, by its linear program and by its variational form."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from tests.reference.average_top import optimum, sorted_average
from tests.solvers.average_top.problems import EVERY_LOSS, examples
from topline import InvalidProblemError
from topline.solvers.average_top import (
    C_from_equation_3,
    C_from_svm,
    C_to_equation_3,
    average_top,
    kth_largest,
    minimise,
    top_weights,
)

LOSSES = np.random.default_rng(3).exponential(size=20)
KS = [1, 1.3, 7.5, 13, 19.99, 20]


@pytest.mark.parametrize("k", KS)
def test_it_is_the_maximum_over_its_weights(k) -> None:
    n = len(LOSSES)
    program = linprog(-LOSSES, A_ub=np.ones((1, n)), b_ub=[1.0], bounds=[(0.0, 1.0 / k)] * n)
    assert average_top(LOSSES, k) == pytest.approx(-program.fun, rel=1e-12)
    assert average_top(LOSSES, k) == pytest.approx(sorted_average(LOSSES, k), rel=1e-14)
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
    assert at_least == pytest.approx(k / n * sorted_average(LOSSES, k), rel=1e-13)
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
