"""Frank-Wolfe on the blocks of a kernel: rounds as on the features of K, whatever the blocks."""

from __future__ import annotations

import numpy as np
import pytest

from tests.solvers.problems import LOSSES, Forgetful, M, loss_name, solved_on_blocks
from tests.solvers.run.test_kernel_blocks import LAM, RBF, K, N, X, Y, psd_root
from topline import MaxHinge, SerialExecutor, Softmax, Status, TopKHinge
from topline import solve as solve_linear
from topline.solvers.blocks.kernel import Change, Mark
from topline.solvers.core.problem import Problem
from topline.solvers.errors import StateLostError
from topline.solvers.operations.kernel import FindKernelVertices, MixVertices, SpreadVertices
from topline.solvers.run import ProblemSpec


def on_blocks(loss, smoothing=0.0, *, blocks=2, tol=1e-2, executor=None, weights=None, **more):
    spec = ProblemSpec(loss, LAM, smoothing=smoothing, method="fw", kernel=RBF)
    with executor or SerialExecutor(blocks=blocks) as found:
        return solved_on_blocks(spec, X, Y, found, tol=tol, weights=weights, **more)


def linear(loss, smoothing=0.0, method="fw", tol=1e-2, **more):
    return solve_linear(
        psd_root(K), Y, loss, LAM, smoothing, method, tol=tol, max_passes=5000, of_duals=True, m=M,
        keep_duals=True, **more,
    )  # fmt: skip


@pytest.mark.parametrize("blocks", [1, 2, 7])
@pytest.mark.parametrize("loss", [MaxHinge(), TopKHinge(3)], ids=loss_name)
def test_every_round_is_that_of_the_linear_problem_whatever_the_blocks(loss, blocks) -> None:
    duals = []
    ours = on_blocks(loss, blocks=blocks, callbacks=[lambda record, _: duals.append(record.dual)])
    theirs = linear(loss)
    assert ours.status is Status.SOLVED
    assert len(duals) == theirs.history[-1].round + 1
    np.testing.assert_allclose(duals, [record.dual for record in theirs.history], rtol=1e-5)
    assert ours.primal == pytest.approx(theirs.primal, rel=1e-6)
    assert np.diff(duals).min() > 0.0
    # Rows that keep their vertices cost nothing.
    assert ours.passes < theirs.passes


@pytest.mark.parametrize("smoothing", [0.0, 0.5])
@pytest.mark.parametrize("loss", LOSSES, ids=loss_name)
@pytest.mark.covering(1)
def test_values_are_those_of_the_matrix_and_bound_the_optimum(loss, smoothing) -> None:
    ours = on_blocks(loss, smoothing)
    best = linear(loss, smoothing, "auto", tol=1e-7)
    assert ours.relative_gap <= 1e-2
    assert ours.dual <= best.primal * (1 + 1e-9)
    assert best.dual <= ours.primal * (1 + 1e-9)
    scores = K @ ours.A / (LAM * N)
    norm = 0.5 * np.sum(ours.A * scores) / N
    assert ours.dual == pytest.approx(
        ours.conjugate_mean - norm - 0.5 * smoothing * np.sum(np.square(ours.A)) / N, rel=1e-6
    )


def test_weights_count() -> None:
    weights = np.random.default_rng(0).uniform(0.2, 2.0, N) * (np.arange(N) != 4)
    ours = on_blocks(TopKHinge(2), weights=weights)
    best = linear(TopKHinge(2), method="auto", tol=1e-7, sample_weight=weights)
    assert ours.dual <= best.primal * (1 + 1e-9)
    assert best.dual <= ours.primal * (1 + 1e-9)
    assert ours.relative_gap <= 1e-2


def test_a_tight_gap_goes_over_to_float64() -> None:
    ours = on_blocks(Softmax(), tol=1e-7)
    assert ours.status is Status.SOLVED
    assert ours.primal == pytest.approx(linear(Softmax(), method="auto", tol=1e-8).primal, rel=2e-7)


# ---------------------------------------------------------------- state


def test_a_run_goes_on_from_its_state_and_duals() -> None:
    short = on_blocks(MaxHinge(), max_passes=5)
    assert short.status is Status.MAX_PASSES
    resumed = on_blocks(MaxHinge(), state=short.state, duals=[(0, N, short.A)], blocks=7)
    assert resumed.status is Status.SOLVED
    assert resumed.history[-1].round == on_blocks(MaxHinge()).history[-1].round


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("at", [2, 4, 6, 7, 11])
@pytest.mark.covering(1)
def test_lost_dual_variables_cost_rounds_and_no_digit(at: int, says: bool) -> None:
    executor = Forgetful(at, blocks=3, says=says)
    try:
        result = on_blocks(MaxHinge(), executor=executor)
    except StateLostError:
        assert not says
        result = on_blocks(MaxHinge())
    assert result.status is Status.SOLVED
    assert result.relative_gap <= 1e-2
    assert result.primal == pytest.approx(on_blocks(MaxHinge()).primal, rel=1e-2)


def test_a_request_that_comes_twice_changes_nothing_more() -> None:
    problem = Problem(MaxHinge(), N, 1, M, LAM)
    at = Mark()
    find = FindKernelVertices(kernel=RBF, mark=at)
    change = Change(np.array([1, 40]), X[[1, 40]], np.eye(M)[:2].astype(np.float32))
    spread = SpreadVertices(kernel=RBF, mark=at, change=change, part=0)
    mixed = MixVertices(kernel=RBF, mark=at, parts=1)
    step = MixVertices(kernel=RBF, mark=at, parts=1, step=0.25, after=Mark(0, 1))
    with SerialExecutor(blocks=3) as executor:
        executor.bind(problem, X, Y, keep_duals=True)
        assert executor.run(mixed).stale == N
        assert executor.run(find).changed == executor.run(find).changed == N
        executor.run(spread)
        once = executor.run(mixed)
        executor.run(spread)
        assert executor.run(mixed).u_t == once.u_t
        assert executor.run(MixVertices(kernel=RBF, mark=at, parts=2)).stale == N
        executor.run(step)
        executor.run(step)
        A = np.concatenate([rows for _, _, rows in executor.duals()])
        assert executor.run(find).stale == N
        assert executor.run(FindKernelVertices(kernel=RBF, mark=Mark(0, 1), of=Mark(3, 3))).stale == N
    # Max hinge at scores 0: the vertex of a row is that of one other class.
    assert np.count_nonzero(A, axis=1).tolist() == [2] * N
    np.testing.assert_allclose(A[np.arange(N), Y], 0.25)
