"""A run that was cut off and goes on is, bit for bit, the run that was not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.solvers.problems import M, examples
from topline import InvalidProblemError, SerialExecutor, Status, TopKHinge, UnsupportedCombinationError, solve
from topline.solvers.core.state import SolverState
from topline.solvers.errors import StateLostError
from topline.solvers.run import loop as iteration


def run(X, y, smoothing, method="fw", **options):
    options = {"tol": 1e-9, "max_passes": 24, "m": M, **options}
    return solve(X, y, TopKHinge(2), 0.05, smoothing, method, executor=SerialExecutor(blocks=3), **options)


@pytest.mark.parametrize("method", ["fw", "fw_open_loop", "projected_gradient"])
@pytest.mark.parametrize(("smoothing", "keep_duals"), [(0.0, False), (0.0, True), (0.5, True)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.covering(2)
def test_a_checkpoint_leads_to_the_same_answer(dtype, smoothing, keep_duals, method, monkeypatch) -> None:
    monkeypatch.setattr(iteration, "REBUILD_EVERY", 10)  # once before the cut and once after
    X, y = examples()
    X = X.astype(dtype)
    whole = run(X, y, smoothing, method, keep_duals=keep_duals)
    first = run(
        X, y, smoothing, method, keep_duals=keep_duals, callbacks=[lambda record, _: record.round < 12]
    )
    assert first.status is Status.INTERRUPTED
    duals = [(0, 20, first.A[:20]), (20, len(y), first.A[20:])] if keep_duals else None
    rest = run(X, y, smoothing, method, keep_duals=keep_duals, state=first.state, duals=duals)
    np.testing.assert_array_equal(rest.W, whole.W)
    assert (rest.primal, rest.dual, rest.conjugate_mean, rest.passes) == (
        whole.primal,
        whole.dual,
        whole.conjugate_mean,
        whole.passes,
    )
    if keep_duals:
        np.testing.assert_array_equal(rest.A, whole.A)
    assert [r.dual for r in first.history + rest.history] == [r.dual for r in whole.history]


def test_a_checkpoint_taken_while_running_is_the_state_of_that_round() -> None:
    """What a callback stores goes on like the run itself, also after the run has gone further."""
    X, y = examples()
    stored = {}
    with SerialExecutor(blocks=3) as executor:

        def store(record, state):
            if record.round == 7:
                parts = [(a, b, rows.copy()) for a, b, rows in executor.duals(state.pending_step)]
                stored.update(state=state, duals=parts)

        options = {"method": "fw", "tol": 1e-9, "max_passes": 24, "m": M, "executor": executor}
        whole = solve(X, y, TopKHinge(2), 0.05, 0.5, callbacks=[store], **options)
        rest = solve(X, y, TopKHinge(2), 0.05, 0.5, **stored, **options)
    np.testing.assert_array_equal(rest.W, whole.W)
    assert len(rest.history) == 24 - 8


def test_rebuilding_W_from_A_wipes_what_drifted(monkeypatch) -> None:
    X, y = examples()
    monkeypatch.setattr(iteration, "REBUILD_EVERY", 5)
    often = run(X, y, 0.5)
    monkeypatch.setattr(iteration, "REBUILD_EVERY", 10**9)
    never = run(X, y, 0.5)
    assert often.dual == pytest.approx(never.dual, rel=1e-12)


@pytest.mark.parametrize(("smoothing", "first"), [(0.0, "newton"), (0.5, "lbfgs")])
@pytest.mark.parametrize("then", ["dual_ascent", "fw", "auto"])
def test_another_method_goes_on_from_the_dual_variables(smoothing, first, then) -> None:
    """W of these methods is not W(A), which is where the next one stands."""
    X, y = examples()
    stop = [lambda record, _: record.round < 3]
    cut = run(X, y, smoothing, first, keep_duals=True, callbacks=stop)
    start = {"state": cut.state, "duals": [(0, len(y), cut.A)]}
    rest = run(X, y, smoothing, then, keep_duals=True, **start)
    best = run(X, y, smoothing, "dual_ascent", max_passes=3000)
    assert cut.relative_gap > 1e-3
    assert all(record.dual <= best.primal <= record.primal * (1 + 1e-9) for record in rest.history)


def test_state_and_duals_belong_together() -> None:
    X, y = examples()
    state, A = (lambda r: (r.state, r.A))(run(X, y, 0.5))
    with pytest.raises(StateLostError, match="state of round 24 is given without its duals"):
        run(X, y, 0.5, state=state)
    with pytest.raises(UnsupportedCombinationError, match="keep_duals=True"):
        run(X, y, 0.0, duals=[(0, len(y), A)], state=state)
    with pytest.raises(StateLostError, match=r"shape \(20, 2\) do not fit"):
        run(X, y, 0.5, state=state, duals=[(0, len(y), A[:, :2])])
    narrow = SolverState.at(np.zeros((2, 2)))
    with pytest.raises(InvalidProblemError, match=r"weights of shape \(2, 2\)"):
        run(X, y, 0.0, state=narrow)


def test_the_state_of_another_problem_is_refused() -> None:
    """Its W and b would bound another optimum: at lam / 1.001 a dual value above P* was certified."""
    X, y = examples()
    lam = 1.0 / len(y)
    seen = []
    solve(
        X,
        y,
        TopKHinge(2),
        lam,
        method="fw_fully_corrective",
        tol=1e-2,
        callbacks=[lambda _, s: seen.append(s)],
    )
    others = [{"lam": lam / 1.001}, {"loss": TopKHinge(3)}, {"sample_weight": np.linspace(0.5, 1.5, len(y))}]
    for change in others:
        problem = {"loss": TopKHinge(2), "lam": lam, **change}
        with pytest.raises(StateLostError, match="belongs to a problem with another"):
            solve(X, y, method="fw_fully_corrective", state=seen[-1], **problem)
    with pytest.raises(StateLostError, match="belongs to a problem with another"):
        solve(X, (y + 1) % 5, TopKHinge(2), lam, method="fw_fully_corrective", state=seen[-1])
    assert (
        solve(X, y, TopKHinge(2), lam, method="fw_fully_corrective", state=seen[-1]).status is Status.SOLVED
    )
