"""The shared direction of the features: the same answers, in fewer passes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from tests.reference import losses as reference
from tests.reference.training_qp import optimum
from topline import SerialExecutor, Softmax, Status, TopKHinge, UsunierHinge, solve
from topline.solvers.core.deflation import Deflation
from topline.solvers.core.problem import Problem
from topline.solvers.methods.dual_ascent import DualAscent


def one_signed(n=600, d=24, m=6, seed=3):
    """Rectified clouds of unit norm: their mean holds most of their length."""
    random = np.random.default_rng(seed)
    y = random.integers(0, m, n)
    X = np.maximum(0.5 * random.standard_normal((m, d))[y] + random.standard_normal((n, d)), 0.0)
    return X / np.linalg.norm(X, axis=1, keepdims=True), y


def passes_of(X, y, C, monkeypatch, *, apart, **options):
    monkeypatch.setattr(DualAscent, "deflates", apart)
    result = solve(X, y, TopKHinge(2), 1.0 / (C * len(y)), max_passes=5000, method="dual_ascent", **options)
    assert result.status is Status.SOLVED
    return result.passes


@pytest.mark.parametrize("loss", [TopKHinge(2), UsunierHinge(2), Softmax()], ids=lambda loss: loss.name)
@pytest.mark.parametrize("blocks", [2, 5])
@pytest.mark.sampled(3)
def test_the_answer_is_that_of_the_problem_and_the_dual_never_falls(loss, blocks) -> None:
    X, y = one_signed(n=150, d=8, m=4)
    lam = 0.02
    with SerialExecutor(blocks=blocks) as executor:
        result = solve(X, y, loss, lam, tol=1e-7, max_passes=5000, method="dual_ascent", executor=executor)
    assert result.state.memory.deflation.direction is not None
    assert result.status is Status.SOLVED
    assert result.dual == pytest.approx(reference.dual(X, y, loss, lam, 0.0, result.A), rel=1e-9)
    assert result.primal == pytest.approx(reference.primal(X, y, loss, lam, 0.0, result.W), rel=1e-9)
    duals = [record.dual for record in result.history]
    assert (np.diff(duals) >= -1e-12 * max(duals)).all()


def test_the_optimum_lies_between_the_bounds() -> None:
    X, y = one_signed(n=40, d=4, m=4)
    executor = SerialExecutor(blocks=3)
    result = solve(
        X, y, TopKHinge(2), 0.02, tol=1e-4, max_passes=5000, method="dual_ascent", executor=executor
    )
    assert result.state.memory.deflation.direction is not None
    best = optimum(X, y, TopKHinge(2), 0.02, 0.0, 4)
    assert result.dual - 1e-7 <= best <= result.primal + 1e-7


@pytest.mark.parametrize("rectify", [True, False])
def test_rows_that_are_long_or_centred_do_not_stall(rectify) -> None:
    """Counts for one seed: long rows make their mean direction stiff, centred ones have none to speak of."""
    random = np.random.default_rng(1)
    y = random.integers(0, 20, 300)
    X = 0.3 * random.standard_normal((20, 200))[y] + random.standard_normal((300, 200))
    X = np.maximum(X, 0.0) if rectify else X
    executor = SerialExecutor(blocks=4)
    result = solve(X, y, TopKHinge(5), 1.0 / len(y), max_passes=5000, method="dual_ascent", executor=executor)
    assert result.status is Status.SOLVED
    assert (result.state.memory.deflation.direction is not None) == rectify
    assert len(result.history) < 100


def test_many_blocks_take_fewer_passes(monkeypatch) -> None:
    """Counts for one seed: 32 blocks that answer to the same mean overshoot without it, where C is large."""
    X, y = one_signed()
    apart = passes_of(X, y, 10.0, monkeypatch, apart=True, executor=SerialExecutor(blocks=32))
    together = passes_of(X, y, 10.0, monkeypatch, apart=False, executor=SerialExecutor(blocks=32))
    assert apart < 0.8 * together


def test_a_checkpoint_remembers_it() -> None:
    X, y = one_signed(n=200)
    lam, states = 1.0 / 200, []
    with SerialExecutor(blocks=3) as executor:

        def keep(record, state):
            A = np.concatenate([rows.copy() for _, _, rows in executor.duals(state.pending_step)])
            states.append((state, A))

        whole = solve(
            X, y, TopKHinge(2), lam, tol=1e-6, method="dual_ascent", executor=executor, callbacks=[keep]
        )
    state, A = states[2]
    again = solve(
        X,
        y,
        TopKHinge(2),
        lam,
        tol=1e-6,
        method="dual_ascent",
        state=state.with_point(pending_step=None),
        duals=[(0, 200, A)],
        executor=SerialExecutor(blocks=3),
    )
    assert again.passes == whole.passes
    np.testing.assert_allclose(again.W, whole.W, rtol=1e-12, atol=1e-14)


def test_sparse_and_centred_features_have_none() -> None:
    X, y = one_signed(n=200)
    result = solve(
        sparse.csr_matrix(X), y, TopKHinge(2), 1e-2, method="dual_ascent", executor=SerialExecutor(blocks=3)
    )
    assert result.state.memory.deflation.direction is None
    problem = Problem(loss=TopKHinge(2), n=4, d=3, m=4, lam=1.0)
    assert Deflation.of(problem, np.zeros((3, 1)), 1.0, 1).direction is None
