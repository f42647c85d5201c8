"""The interior point method on programs that are hard for it, judged by the gaps that they leave."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference.qp import minimise_qp
from tests.solvers.privileged.problems import rbf
from topline.solvers.privileged import solve_svm_plus, solve_weighted_svm
from topline.solvers.privileged.interior_point import (
    Iterate,
    QuadraticProgram,
    interior_points,
    vertex_of_face,
)


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
