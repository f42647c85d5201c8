"""Dual variables that are lost in mid-run: the rest is kept, and the run goes on to the same answer."""

from __future__ import annotations

import numpy as np
import pytest

from tests.contracts.executor_contract import BOUNDS, ExecutorContract
from tests.solvers.problems import Forgetful, M, examples
from topline import SerialExecutor, TopKHinge, solve
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.state import SolverState, Status
from topline.solvers.operations import FindVertices


@pytest.mark.parametrize("at_request", [1, 6, 7])
@pytest.mark.parametrize(
    ("method", "smoothing"),
    [
        ("dual_ascent", 0.0),
        ("dual_ascent", 0.5),
        ("sdca", 0.5),
        ("fw", 0.5),
        ("fw_pairwise_columns", 0.0),
        ("lbfgs", 0.5),
    ],
)
@pytest.mark.sampled(8)
def test_a_run_goes_on_to_the_same_answer(method: str, smoothing: float, at_request: int) -> None:
    X, y = examples(n=80)
    options = {"method": method, "tol": 1e-3, "max_passes": 5000, "keep_duals": True, "m": M}
    expected = solve(X, y, TopKHinge(2), 0.05, smoothing, executor=SerialExecutor(blocks=4), **options)
    with Forgetful(at_request, blocks=4) as executor:
        result = solve(X, y, TopKHinge(2), 0.05, smoothing, executor=executor, **options)
        assert executor.requests > at_request
    assert result.status is expected.status is Status.SOLVED
    assert result.primal == pytest.approx(expected.primal, rel=2e-3)
    assert [record.round for record in result.history] == list(range(len(result.history)))


def test_settled_blocks_have_the_step_however_far_they_had_come() -> None:
    contract, pending_step = ExecutorContract(), PendingStep(0, 0.5)
    with SerialExecutor(bounds=BOUNDS) as plain, SerialExecutor(bounds=BOUNDS) as settled:
        for executor in (contract.bound(plain), contract.bound(settled)):
            executor.run(FindVertices(0, contract.weights(0)))
        request = FindVertices(1, contract.weights(1), pending_step)
        settled._set.blocks[2].run(request, 1)
        for block in settled._set.blocks:
            block.finish_step(pending_step)
            block.finish_step(pending_step)
        expected = contract.all_duals(plain, pending_step)
        assert np.abs(expected).max() > 0
        np.testing.assert_array_equal(contract.all_duals(settled), expected)
        contract.assert_same(settled.run(request), plain.run(request))


@pytest.mark.parametrize("at_request", range(2, 9))
def test_W_stays_that_of_the_dual_variables_wherever_a_round_was_cut(at_request: int) -> None:
    """A round of several blocks is begun again with steps of the same numbers as before."""
    X, y = examples(n=80)
    with Forgetful(at_request, blocks=4) as executor:

        def check(_: object, state: SolverState) -> None:
            A = np.concatenate([rows for _, _, rows in executor.duals(state.pending_step)])
            np.testing.assert_allclose(state.W, X.T @ A / (0.05 * len(y)), atol=1e-9)

        options = {"method": "dual_ascent", "tol": 1e-6, "m": M, "executor": executor}
        solve(X, y, TopKHinge(2), 0.05, callbacks=[check], **options)
        assert executor.requests > at_request
