"""The small quadratic program of the fully corrective step, against a general solver and all of its faces."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from tests.reference.qp import minimise_qp
from topline.solvers.methods.atoms import maximise_on_simplex, rise_between


def value(gram, linear, w):
    return linear @ w - 0.5 * w @ gram @ w


def problem(random, atoms, dimension, scale=1.0, pull=1.0):
    """Give a Gram matrix of `atoms` points, singular where they are more than the dimension, and a slope."""
    points = scale * random.standard_normal((atoms, dimension))
    return points @ points.T, pull * random.standard_normal(atoms)


def start_of(random, atoms):
    """Give a point of the simplex with zeros."""
    weights = random.random(atoms) * (random.random(atoms) < 0.5)
    weights[random.integers(atoms)] += 0.1
    return weights / weights.sum()


def shortfall(gram, linear, w):
    """Give the Frank-Wolfe gap at w, which bounds what is missing, over the size of the numbers."""
    gradient = linear - gram @ w
    return (gradient.max() - w @ gradient) / (np.abs(linear).max() + np.abs(gram).max())


@pytest.mark.parametrize("dimension", [1, 3, 8, 20])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_optimum_of_a_general_solver(dimension, scale) -> None:
    random = np.random.default_rng(dimension)
    for atoms in (2, 5, 12, 30):
        gram, linear = problem(random, atoms, dimension, scale)
        ours = maximise_on_simplex(gram, linear, start_of(random, atoms))
        size = max(np.abs(gram).max(), np.abs(linear).max())
        theirs = minimise_qp(
            gram / size, -linear / size, -np.eye(atoms), np.zeros(atoms), np.ones((1, atoms)), np.ones(1)
        )
        assert ours.min() >= 0
        assert ours.sum() == pytest.approx(1.0, abs=1e-14)
        assert value(gram, linear, ours) == pytest.approx(value(gram, linear, theirs), abs=1e-8 * size)
        assert value(gram, linear, ours) >= value(gram, linear, np.maximum(theirs, 0.0)) - 1e-8 * size


def test_the_best_of_all_faces() -> None:
    """On each face the maximum of the whole plane through it, where that lies on the face."""
    random = np.random.default_rng(5)
    for _ in range(20):
        gram, linear = problem(random, 5, 6)
        best = -np.inf
        for size in range(1, 6):
            for face in map(list, combinations(range(5), size)):
                equations = np.zeros((size + 1, size + 1))
                equations[:size, :size] = gram[np.ix_(face, face)]
                equations[size, :size] = equations[:size, size] = 1.0
                w = np.linalg.solve(equations, np.append(linear[face], 1.0))[:size]
                if w.min() >= 0:
                    best = max(best, value(gram[np.ix_(face, face)], linear[face], w))
        ours = value(gram, linear, maximise_on_simplex(gram, linear, np.full(5, 0.2)))
        assert ours == pytest.approx(best, rel=1e-13)


@pytest.mark.parametrize("case", ["twins", "between", "flat", "one place", "no slope", "one atom"])
def test_degenerate_atoms_are_solved_to_rounding(case) -> None:
    random = np.random.default_rng(11)
    for atoms in (4, 9, 40):
        points, linear = random.standard_normal((atoms, 6)), random.standard_normal(atoms)
        match case:
            case "twins":
                points[1], linear[1] = points[0], linear[0]
                points[3] = points[2]
            case "between":
                points[3], linear[3] = 0.5 * (points[0] + points[1]), 0.5 * (linear[0] + linear[1])
            case "flat":
                points[:, 1:] = 0.0
            case "one place":
                points[:] = points[0]
            case "no slope":
                linear[:] = 0.0
            case _:
                points, linear = points[:1], linear[:1]
        gram = points @ points.T
        for _ in range(5):
            w = maximise_on_simplex(gram, linear, start_of(random, len(linear)))
            assert shortfall(gram, linear, w) < 1e-14


def test_a_linear_objective_ends_at_a_corner() -> None:
    w = maximise_on_simplex(np.zeros((3, 3)), np.array([1.0, 3.0, 2.0]), np.full(3, 1 / 3))
    np.testing.assert_array_equal(w, [0.0, 1.0, 0.0])


def test_the_answer_is_never_below_the_start() -> None:
    """Also where rounding is larger than what is left to gain."""
    random = np.random.default_rng(2)
    for scale in (1e-8, 1.0, 1e8):
        for _ in range(30):
            gram, linear = problem(random, 12, 4, scale, pull=1e-6)
            start = start_of(random, 12)
            first = maximise_on_simplex(gram, linear, start)
            again = maximise_on_simplex(gram, linear, first)
            rounding = 1e-16 * np.abs(gram).max()
            assert rise_between(gram, linear, start, first) >= -rounding
            assert rise_between(gram, linear, first, again) >= -rounding


def test_the_rise_has_digits_that_the_objective_has_not() -> None:
    gram, linear = np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([1e8, 1e8 + 1e-7])
    before, after = np.array([0.5, 0.5]), np.array([0.5 - 2**-40, 0.5 + 2**-40])
    slope = linear[1] - linear[0]
    assert rise_between(gram, linear, before, after) == pytest.approx(slope * 2**-40 - 2**-80, rel=1e-9)
