"""Frank-Wolfe: every number it reports, against evaluations that share nothing with it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference import losses as reference
from tests.solvers.problems import LOSSES, M, examples, loss_name
from topline import (
    MaxHinge,
    SerialExecutor,
    Status,
    UsunierHinge,
    WeightedTopKHinge,
    linear,
    solve,
)

LAM_N = [0.1, 1.0, 100.0]
SMOOTHING = [0.0, 0.5]


def run(X, y, loss, lam_n, smoothing=0.0, **options):
    options = {"method": "fw", "tol": 1e-9, "max_passes": 40, "m": M, **options}
    return solve(X, y, loss, lam_n / len(y), smoothing, **options)


def trajectory(X, y, loss, lam_n, smoothing, rounds=12, **options):
    """Give (record, A after the round) for some rounds."""
    seen = []
    with SerialExecutor() as executor:

        def keep(record, state):
            seen.append(
                (record, np.concatenate([rows.copy() for _, _, rows in executor.duals(state.pending_step)]))
            )

        run(
            X, y, loss, lam_n, smoothing,
            max_passes=rounds, executor=executor, callbacks=[keep], keep_duals=True, **options,
        )  # fmt: skip
    return seen


@pytest.mark.parametrize("loss", LOSSES, ids=loss_name)
@pytest.mark.parametrize("smoothing", SMOOTHING)
@pytest.mark.parametrize("lam_n", LAM_N)
@pytest.mark.covering(2)
class TestEveryLossSmoothingAndRegulariser:
    def test_the_dual_never_falls_and_the_two_gaps_agree(self, loss, smoothing, lam_n) -> None:
        """Frank-Wolfe gap <grad D, U - A> and lifted duality gap come from different reductions.

        A round reports the smallest P so far: the gap is that of its own iterate where that is the best.
        """
        X, y = examples()
        rounds = trajectory(X, y, loss, lam_n, smoothing)
        duals = [record.dual for record, _ in rounds]
        assert (np.diff(duals) >= -1e-14 * max(duals)).all()
        lam, n = lam_n / len(y), len(y)
        for (record, _), (before, A) in zip(rounds[1:], rounds[:-1], strict=True):
            S = X @ reference.weights_of(X, lam, A) + smoothing * A
            slope = 0.0
            for s, a, label in zip(S, A, y, strict=True):
                gradient = -reference.margins_of(loss, label, M) - s
                slope += (reference.vertex(loss, s, label) - a) @ gradient / n
            assert record.gap <= slope + 1e-9 * abs(slope) + 1e-12
            if record.primal < before.primal:
                assert record.gap == pytest.approx(slope, rel=1e-9, abs=1e-12)
            assert record.gap_kind == ("lifted" if smoothing > 0 else "true")

    def test_the_step_maximises_the_dual_on_the_segment(self, loss, smoothing, lam_n) -> None:
        """D along the segment is a parabola; three values fix it, wherever lam n lies."""
        X, y = examples()
        rounds = trajectory(X, y, loss, lam_n, smoothing)
        lam = lam_n / len(y)
        for (record, _), (_, A) in zip(rounds[1:], rounds[:-1], strict=True):
            S = X @ reference.weights_of(X, lam, A) + smoothing * A
            U = np.array([reference.vertex(loss, s, label) for s, label in zip(S, y, strict=True)])
            at = [reference.dual(X, y, loss, lam, smoothing, A + g * (U - A)) for g in (0.0, 0.5, 1.0)]
            slope = -3.0 * at[0] + 4.0 * at[1] - at[2]
            curvature = -4.0 * (at[0] - 2.0 * at[1] + at[2])
            best = min(max(slope / curvature, 0.0), 1.0)
            assert record.step == pytest.approx(best, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("smoothing", SMOOTHING)
def test_the_state_without_duals_is_the_state_with_them(smoothing) -> None:
    X, y = examples()
    kept = run(X, y, WeightedTopKHinge(linear(3)), 0.5, smoothing, keep_duals=True)
    bare = run(X, y, WeightedTopKHinge(linear(3)), 0.5, smoothing)
    assert kept.dual == pytest.approx(bare.dual, rel=1e-12)
    assert kept.primal == pytest.approx(bare.primal, rel=1e-12)
    assert (bare.A is None) == (smoothing == 0)


def test_full_batch_pegasos_is_the_step_one_over_t() -> None:
    """W - grad P / (lam t), then the ball, is what projected_gradient does."""
    X, y = examples()
    n, lam, loss = len(y), 0.02, UsunierHinge(2)
    W = np.zeros((X.shape[1], M))
    radius_sq = np.mean([reference.sorted_loss(loss, np.zeros(M), label) for label in y]) / lam
    projected = 0
    for t in range(1, 31):
        U = np.array([reference.vertex(loss, s, label) for s, label in zip(X @ W, y, strict=True)])
        W = W - (lam * W - X.T @ U / n) / (lam * t)
        if np.sum(W**2) > radius_sq:
            projected += 1
            W *= np.sqrt(radius_sq / np.sum(W**2))
    result = solve(X, y, loss, lam, method="projected_gradient", tol=1e-12, max_passes=30, m=M)
    np.testing.assert_allclose(result.W, W, rtol=1e-12, atol=1e-12)
    assert projected > 0


@pytest.mark.parametrize("dtype", [np.float16, np.uint8, np.int64, np.bool_])
def test_other_number_types_are_read_as_they_are(dtype) -> None:
    X, y = examples(n=40)
    X = np.round(4 * np.abs(X)).astype(dtype)
    assert run(X, y, MaxHinge(), 10.0).primal == pytest.approx(
        run(X.astype(np.float64), y, MaxHinge(), 10.0).primal, rel=1e-5
    )


def test_a_loose_budget_says_so() -> None:
    X, y = examples()
    assert run(X, y, MaxHinge(), 1.0, max_passes=3).status is Status.MAX_PASSES
    assert run(X, y, MaxHinge(), 1.0, max_passes=10**6, time_limit=1e-9).status is Status.TIME_LIMIT
    for answer in (bool, np.bool_):  # NumPy's comparisons give the second
        stopped = run(X, y, MaxHinge(), 1.0, callbacks=[lambda record, _, of=answer: of(record.round < 4)])
        assert stopped.status is Status.INTERRUPTED
        assert stopped.passes == 5


def test_rounding_ends_a_run_that_asks_for_too_much() -> None:
    X, y = np.eye(2), np.array([0, 1])
    result = solve(X, y, MaxHinge(), 1.0, method="fw", tol=1e-14, max_passes=500)
    assert result.status in {Status.NO_PROGRESS, Status.SOLVED}
    assert result.relative_gap < 1e-12


def test_keyboard_interrupt_is_not_swallowed() -> None:
    X, y = examples()

    def press(record, state):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(X, y, MaxHinge(), 1.0, callbacks=[press])
