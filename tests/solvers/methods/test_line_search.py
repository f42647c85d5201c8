"""Step rules and the line search: what is accepted, where it goes next, and that it ends at a minimum."""

from __future__ import annotations

import math

import numpy as np
import pytest

from topline import TopKHinge
from topline.solvers.core.problem import Problem
from topline.solvers.methods.step_rules import Bracket, Direction, ExactStep, Schedule, least_slope


def searched(f, slope, step, most=60):
    """Return the bracket at which the search of f stops."""
    bracket = Bracket.start(f(0.0), slope(0.0), step)
    while not bracket.accepts(f(bracket.step), slope(bracket.step)):
        bracket = bracket.after(f(bracket.step), slope(bracket.step))
        assert bracket.trials < most
        assert bracket.low < bracket.step < bracket.high
    return bracket


@pytest.mark.parametrize("start", [1e-4, 0.1, 1.0, 3.0, 1e4])
@pytest.mark.parametrize("minimum", [0.01, 1.0, 50.0])
def test_a_parabola_ends_where_the_slope_is_a_tenth_less(start, minimum) -> None:
    bracket = searched(lambda x: (x - minimum) ** 2, lambda x: 2 * (x - minimum), start)
    assert 2 * (bracket.step - minimum) >= 0.9 * -2 * minimum
    assert (bracket.step - minimum) ** 2 <= minimum**2 - 1e-4 * bracket.step * 2 * minimum


def test_a_kink_is_found_between_a_short_and_a_long_step() -> None:
    bracket = searched(lambda x: abs(x - 3.0), lambda x: math.copysign(1.0, x - 3.0), 1.0)
    assert abs(bracket.step - 3.0) < 3.0


# f(0) = 1 and f'(0) = -1, step 2: the decrease that is asked for is 2e-4, the slope at least -0.9.
@pytest.mark.parametrize(
    ("value", "slope", "accepted"),
    [
        (1.0 - 2e-4, -0.9, True),  # both at their bounds
        (1.0 - 2e-4, -0.9001, False),
        (1.0 - 2e-4, 5.0, True),  # the weak condition has no bound above
        (1.0 - 1.9e-4, 5.0, False),
        (1.0 - 1.9e-4, 0.0, True),  # too little, but the values agree too nearly to say so: slopes decide
        (1.0 + 1e-7, 0.8, True),  # (2 * 0.1 - 1) * -1
        (1.0 + 1e-7, 0.8001, False),
        (1.0 + 1.1e-7, 0.0, False),
        (math.nan, 0.0, False),
        (0.5, math.nan, False),
        (math.inf, 0.0, False),
    ],
)
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_what_is_accepted(value, slope, accepted, scale) -> None:
    assert Bracket.start(scale, -scale, 2.0).accepts(scale * value, scale * slope) is accepted


def test_values_below_zero_are_compared_by_their_size() -> None:
    bracket = Bracket.start(-1.0, -1.0, 2.0)
    assert bracket.accepts(-1.0 + 1e-7, 0.0)
    assert not bracket.accepts(-1.0 + 1.1e-7, 0.0)
    assert Bracket.start(-8.0, -1.0, 2.0).accepts(-8.0 + 7e-7, 0.0)


@pytest.mark.parametrize(
    ("slope", "step"),
    [
        (-0.95, 40.0),  # the linear slope vanishes at 1 / (1 - 0.95) = 20 times the step
        (-0.999, 200.0),  # at most a hundred times
        (-1.0, 200.0),  # no zero ahead
        (-2.0, 200.0),
    ],
)
def test_a_step_that_was_too_short_grows_to_where_the_slope_vanishes(slope, step) -> None:
    after = Bracket.start(1.0, -1.0, 2.0).after(0.0, slope)
    assert after.step == pytest.approx(step)
    assert (after.low, after.low_slope, after.high, after.trials) == (2.0, slope, math.inf, 1)


@pytest.mark.parametrize(
    ("value", "slope", "step"),
    [
        (2.0, 1.0, 1.0),  # half of the way: the slope vanishes there
        (2.0, 3.0, 0.5),  # a quarter
        (2.0, 99.0, 0.2),  # a tenth at the least
        (2.0, 1 / 9, 1.8),  # nine tenths are the most ...
        (2.0, 0.11, 1.0),  # ... and half where more is asked for
        (2.0, 0.0, 1.0),
        (2.0, -1.0, 1.0),  # the slope did not rise
        (2.0, -2.0, 1.0),
        (0.5, 1.0, 1.0),  # low enough, and too long all the same
    ],
)
def test_a_step_that_was_too_long_is_cut_to_where_the_slope_vanishes(value, slope, step) -> None:
    after = Bracket.start(1.0, -1.0, 2.0).after(value, slope)
    assert after.step == pytest.approx(step)
    assert (after.low, after.low_slope, after.high, after.high_slope, after.trials) == (
        0,
        -1.0,
        2.0,
        slope,
        1,
    )


def test_a_short_step_within_a_bracket_goes_between_its_ends() -> None:
    bracket = Bracket(1.0, -1.0, 2.0, 1.0, -0.96, high=4.0, high_slope=0.95, trials=3)
    after = bracket.after(0.9, -0.95)
    assert (after.low, after.low_slope, after.high, after.high_slope, after.trials) == (2, -0.95, 4, 0.95, 4)
    assert after.step == pytest.approx(3.0)


@pytest.mark.parametrize(("trials", "step"), [(4, 0.8), (5, 0.5)])
def test_the_bracket_is_halved_after_five_secants(trials, step) -> None:
    bracket = Bracket(1.0, -1.0, 1.0, 0.0, -1.0, high=1.5, high_slope=0.5, trials=trials)
    assert bracket.after(2.0, 0.25).step == pytest.approx(step)


def test_a_slope_at_its_bound_is_not_too_short() -> None:
    assert Bracket.start(1.0, -1.0, 2.0).after(1.0, -0.9).high == 2.0


def test_a_step_is_too_long_where_the_value_rose_by_more_than_rounding() -> None:
    bracket = Bracket.start(1.0, -1.0, 2.0)
    assert bracket.after(1.0 + 1e-7, -1.0).low == 2.0
    assert bracket.after(1.0 + 1.1e-7, -1.0).high == 2.0


@pytest.mark.parametrize(
    "slopes",
    [
        {1.0: -0.1},  # a tenth of the slope is left, of either sign
        {1.0: 0.1},
        {1.0: math.nan},
        {1.0: -0.75, 2.0: -0.5, 4.0: 0.0},  # twice as far while it is too short
        {1.0: 3.0, 0.25: 0.0},  # the zero of the secant
        {1.0: 99.0, 0.1: 0.0},  # a tenth of the way at the least
        {1.0: -2.0, 2.0: 0.11, 1.9: 0.0},  # nine tenths at most
        {1.0: -2 / 3, 2.0: -1 / 3, 4.0: 1 / 3, 3.0: 0.0},  # from the longest step that was too short
        {1.0: 3.0, 0.25: 0.5, 1 / 6: 0.0},  # to the shortest that was too long
        {2.0**k: -1.0 for k in range(12)},  # twelve times at most
    ],
)
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_the_least_slope_is_sought_by_secants(slopes, scale) -> None:
    tried = []

    def slope_at(step):
        tried.append(step)
        return scale * list(slopes.values())[len(tried) - 1]

    found = least_slope(slope_at, -scale)
    assert tried == pytest.approx(list(slopes))
    assert found == pytest.approx(2.0**12 if len(slopes) == 12 else tried[-1])


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
