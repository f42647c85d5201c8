"""Step rules, and the quadratic along a direction that they go by."""

from __future__ import annotations

import math

import numpy as np
import pytest

from topline import TopKHinge
from topline.solvers.core.problem import Problem
from topline.solvers.methods.step_rules import Direction, ExactStep, Schedule

LAM, GAMMA = 0.25, 0.5
W = np.array([[1.0, 2.0, -3.0], [1.5, -1.0, 1.0]])
CHANGE = np.array([[2.0, -1.0, 1.0], [4.0, 1.0, 3.0]])
WCHANGE, SQUARE = 2 - 2 - 3 + 6 - 1 + 3, 4 + 1 + 1 + 16 + 1 + 9


def problem(smoothing):
    return Problem(TopKHinge(1), n=4, d=2, m=3, lam=LAM, smoothing=smoothing)


def direction(slope=3.0, curvature=4.0):
    return Direction(np.zeros((2, 3)), 0.0, 0.0, 0.0, slope, curvature, 0.0)


@pytest.mark.parametrize("smoothing", [0.0, GAMMA])
def test_the_quadratic_has_the_terms_of_the_dual(smoothing) -> None:
    found = Direction.of(problem(smoothing), W, CHANGE, linear=3.0, cross=-7.0, square=2.0)
    assert found.slope == pytest.approx(3.0 - LAM * WCHANGE + 7.0 * smoothing)
    assert found.curvature == pytest.approx(LAM * SQUARE + 2.0 * smoothing)
    assert found.terms == pytest.approx(3.0 + LAM * WCHANGE + 7.0 * smoothing)
    assert (found.linear, found.cross, found.square) == (3.0, -7.0, 2.0)
    assert found.weights is CHANGE


def test_a_square_below_zero_is_rounding() -> None:
    found = Direction.of(problem(GAMMA), W, CHANGE, linear=0.0, cross=0.0, square=-1e-9)
    assert found.square == 0.0
    assert found.curvature == LAM * SQUARE


def test_the_rise_is_that_of_the_quadratic() -> None:
    assert direction().rise(0.5) == 0.5 * 3.0 - 0.5**2 * 4.0 / 2
    assert direction().rise(3.0) == 9.0 - 9.0 * 4.0 / 2


@pytest.mark.parametrize(
    ("slope", "curvature", "step"),
    [(1.0, 4.0, 0.25), (4.0, 4.0, 1.0), (5.0, 4.0, 1.0), (3.9, 4.0, 0.975), (0.0, 4.0, 0.0), (-1.0, 4.0, 0.0),
     (1.0, 0.0, 1.0), (0.0, 0.0, 0.0), (1e-12, 1.0, 1e-12)],
)  # fmt: skip
def test_the_exact_step_is_the_best_of_the_segment(slope, curvature, step) -> None:
    assert ExactStep().step(7, direction(slope, curvature)) == pytest.approx(step, rel=1e-12)


@pytest.mark.parametrize(
    ("slope", "curvature"), [(math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0), (1.0, math.inf)]
)
def test_after_an_overflow_there_is_no_step(slope, curvature) -> None:
    assert math.isnan(ExactStep().step(0, direction(slope, curvature)))


def test_the_schedules_are_those_of_the_papers() -> None:
    assert [Schedule(2.0).step(t, direction()) for t in range(3)] == [1.0, 2 / 3, 0.5]
    assert [Schedule(1.0, projects=True).step(t, direction()) for t in range(3)] == [1.0, 1 / 2, 1 / 3]
