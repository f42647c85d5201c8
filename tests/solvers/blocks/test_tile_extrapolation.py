"""Extrapolation between sweeps over picked rows: what it says of D holds, and it spares passes."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics.pairwise import rbf_kernel

from tests.solvers.problems import M, examples, loss_name, solved_on_blocks
from topline import MaxHinge, RBFKernel, SerialExecutor, Softmax, Status, TopKHinge, UsunierHinge
from topline.solvers.blocks import kernel
from topline.solvers.blocks.ascent.extrapolation import Extrapolation
from topline.solvers.blocks.ascent.sweeps import KernelTile, SweptPart, repeated_sweeps
from topline.solvers.blocks.kernel import PickedRows, TileRows, extrapolation_bytes, part_of
from topline.solvers.core.problem import Problem
from topline.solvers.losses.rows import nearest_rows
from topline.solvers.run import ProblemSpec

X, Y = examples(n=120, spread=2.0)
N = len(Y)
GAMMA = 0.01
K = rbf_kernel(X, gamma=GAMMA)
LAM = 1.0 / (N * 300.0)


def picked(dtype=np.float64, weights=None) -> PickedRows:
    zeros = np.zeros((N, M), dtype=dtype)
    return PickedRows(
        np.arange(N), X.astype(dtype), Y.astype(np.int32), np.ones(N) if weights is None else weights, zeros,
        zeros.copy(),
    )  # fmt: skip


def part(problem: Problem, weights=None) -> SweptPart:
    return part_of(problem, KernelTile(K, np.zeros((M, N))), picked(weights=weights))


def value(problem: Problem, A: np.ndarray, weights: np.ndarray) -> float:
    """n D(A), written out for a hinge with unit margins."""
    own = A[np.arange(N), Y]
    norm = problem.scale * np.sum((weights[:, None] * A) * (K @ (weights[:, None] * A)))
    return float(weights @ own - 0.5 * norm - 0.5 * problem.smoothing * weights @ (A * A).sum(axis=1))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("loss", [MaxHinge(), TopKHinge(3), UsunierHinge(2)], ids=loss_name)
def test_the_dual_rises_by_what_a_step_says_within_the_domain(loss, smoothing, weighted) -> None:
    problem = Problem(loss, N, 1, M, LAM, smoothing)
    form = problem.form
    weights = np.random.default_rng(0).uniform(0.5, 2.0, N) if weighted else np.ones(N)
    rows, column = part(problem, weights), form.column_where(alike=True)
    delta, scores = rows.delta, rows.tile.W
    extrapolation = Extrapolation(TileRows(problem, K, rows))
    gained = 0.0
    for round_ in range(12):
        for seed in range(3):
            order = np.random.default_rng((round_, seed)).permutation(N)
            repeated_sweeps(rows._replace(places=order, rows=order), column, 1, np.inf, order)
        before = value(problem, delta, weights)
        rise = extrapolation.step(0.0)
        assert value(problem, delta, weights) - before == pytest.approx(rise, rel=1e-6, abs=1e-9)
        np.testing.assert_allclose(scores.T, problem.scale * K @ (weights[:, None] * delta), atol=1e-8)
        np.testing.assert_allclose(nearest_rows(form, delta, rows.y), delta, atol=1e-9)
        assert rise >= 0.0
        gained += rise
    assert gained > 0.0


def test_a_step_that_brings_little_is_not_taken_each_time() -> None:
    problem = Problem(MaxHinge(), N, 1, M, LAM)
    extrapolation = Extrapolation(TileRows(problem, K, part(problem)))
    tried = []
    extrapolation._best_of_span = lambda: tried.append(1) or np.zeros((N, M))
    for _ in range(12):
        extrapolation.step(1.0)
    # After t failures 2^t - 1 occasions go by: the first, third and seventh are taken.
    assert len(tried) == 3


def test_losses_with_no_parabola_and_rows_without_room_go_without(monkeypatch) -> None:
    hinge = Problem(MaxHinge(), N, 1, M, LAM)
    assert TileRows.fits(hinge, part(hinge))
    softmax = Problem(Softmax(), N, 1, M, LAM)
    assert not TileRows.fits(softmax, part(softmax))
    monkeypatch.setattr(kernel, "_MOST_BYTES", extrapolation_bytes(N, M) - 1)
    assert extrapolation_bytes(N, M) == 0
    assert not TileRows.fits(hinge, part(hinge))


@pytest.mark.parametrize(("loss", "blocks"), [(MaxHinge(), 1), (MaxHinge(), 7), (TopKHinge(3), 2)])
def test_a_wide_kernel_takes_few_passes_at_a_large_C(loss, blocks, monkeypatch) -> None:
    def solved():
        spec = ProblemSpec(loss, LAM, method="dual_ascent", kernel=RBFKernel(GAMMA))
        with SerialExecutor(blocks=blocks) as executor:
            return solved_on_blocks(spec, X, Y, executor, tol=1e-5, m=M, picked=90)

    with_help = solved()
    monkeypatch.setattr(TileRows, "fits", lambda *_: False)
    alone = solved()
    assert with_help.status is Status.SOLVED
    assert with_help.primal == pytest.approx(alone.primal, rel=2e-5)
    assert 1.5 * with_help.passes < alone.passes
