"""Frank-Wolfe on the blocks of a kernel, with atoms and without: rounds as on the features of K."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference.training_qp import optimum
from tests.solvers.problems import LOSSES, Forgetful, M, loss_name, several_labels, solved_on_blocks
from tests.solvers.run.test_kernel_blocks import LAM, RBF, K, N, X, Y, psd_root
from topline import MaxHinge, MultilabelHinge, SerialExecutor, Softmax, Status, TopKHinge, solve
from topline.solvers.blocks.kernel import Change, Mark
from topline.solvers.core.problem import Problem
from topline.solvers.errors import StateLostError
from topline.solvers.methods import kernel
from topline.solvers.operations.kernel import FindKernelVertices, MixVertices, SpreadVertices
from topline.solvers.run import ProblemSpec

METHODS = ["fw", "fw_away", "fw_pairwise", "fw_fully_corrective"]


def on_blocks(loss, smoothing=0.0, *, method="fw_fully_corrective", blocks=2, executor=None, **more):
    spec = ProblemSpec(loss, LAM, smoothing=smoothing, method=method, kernel=RBF)
    rows, labels = more.pop("rows", X), more.pop("labels", Y)
    with executor or SerialExecutor(blocks=blocks) as found:
        return solved_on_blocks(spec, rows, labels, found, **{"tol": 1e-2, **more})


def linear(loss, smoothing=0.0, method="auto", tol=1e-7, **more):
    of_duals = {"of_duals": True, "keep_duals": True} if method in ("fw", "auto") else {}
    return solve(
        psd_root(K), Y, loss, LAM, smoothing, method, tol=tol, max_passes=5000, m=M, **of_duals, **more
    )


@pytest.mark.parametrize("blocks", [1, 2, 7])
@pytest.mark.parametrize("method", METHODS)
def test_rounds_are_those_of_the_linear_problem_whatever_the_blocks(method, blocks) -> None:
    """The same vertices and atoms in the features of K, until rounding chooses among equal vertices."""
    duals, loss = [], TopKHinge(3 if method == "fw" else 2)
    ours = on_blocks(
        loss, method=method, blocks=blocks, callbacks=[lambda record, _: duals.append(record.dual)]
    )
    theirs = linear(loss, method=method, tol=1e-2)
    assert ours.status is theirs.status is Status.SOLVED
    first = min(len(duals), len(theirs.history), 25)
    np.testing.assert_allclose(duals[:first], [record.dual for record in theirs.history[:first]], rtol=1e-5)
    assert np.diff(duals).min() > -1e-7 * duals[-1]
    assert ours.dual <= theirs.primal * (1 + 1e-9)
    assert theirs.dual <= ours.primal * (1 + 1e-9)
    if method == "fw":
        assert len(duals) == theirs.history[-1].round + 1
        # Rows that keep their vertices cost nothing.
        assert ours.passes < theirs.passes


@pytest.mark.parametrize("smoothing", [0.0, 0.5])
@pytest.mark.parametrize("loss", LOSSES, ids=loss_name)
@pytest.mark.parametrize("method", ["fw", "fw_fully_corrective"])
@pytest.mark.covering(1)
def test_values_are_those_of_the_matrix_and_bound_the_optimum(method, loss, smoothing) -> None:
    ours = on_blocks(loss, smoothing, method=method)
    best = linear(loss, smoothing)
    assert ours.relative_gap <= 1e-2
    assert ours.dual <= best.primal * (1 + 1e-9)
    assert best.dual <= ours.primal * (1 + 1e-9)
    scores = K @ ours.A / (LAM * N)
    norm = 0.5 * np.sum(ours.A * scores) / N
    assert ours.dual == pytest.approx(
        ours.conjugate_mean - norm - 0.5 * smoothing * np.sum(np.square(ours.A)) / N, rel=1e-6
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.5])
@pytest.mark.parametrize("loss", [MaxHinge(), TopKHinge(3)], ids=loss_name)
def test_a_general_solver_finds_the_same_optimum(loss, smoothing) -> None:
    best = optimum(psd_root(K[:24, :24]), Y[:24], loss, LAM, smoothing, m=M)
    ours = on_blocks(loss, smoothing, rows=X[:24], labels=Y[:24], tol=1e-5)
    assert ours.status is Status.SOLVED
    assert ours.dual <= best * (1 + 1e-6)
    assert ours.primal == pytest.approx(best, rel=2e-5)


@pytest.mark.parametrize("method", ["fw", "fw_fully_corrective"])
def test_weights_count_and_a_smooth_loss_is_bounded(method) -> None:
    weights = np.random.default_rng(0).uniform(0.2, 2.0, N) * (np.arange(N) != 4)
    for loss in (TopKHinge(2), Softmax()):
        ours = on_blocks(loss, method=method, weights=weights)
        best = linear(loss, sample_weight=weights)
        assert ours.relative_gap <= 1e-2
        assert ours.dual <= best.primal * (1 + 1e-9)
        assert best.dual <= ours.primal * (1 + 1e-9)


def test_a_tight_gap_goes_over_to_float64() -> None:
    ours = on_blocks(Softmax(), method="fw", tol=1e-7)
    assert ours.status is Status.SOLVED
    assert ours.primal == pytest.approx(linear(Softmax(), tol=1e-8).primal, rel=2e-7)


def test_few_atoms_are_mixed_and_end_at_the_same_optimum(monkeypatch) -> None:
    every = on_blocks(MaxHinge())
    monkeypatch.setattr(kernel, "ATOM_BYTES", 0)
    few = on_blocks(MaxHinge())
    assert few.status is Status.SOLVED
    assert len(few.state.memory.atoms.names) <= 4 < len(every.state.memory.atoms.names)
    assert few.primal == pytest.approx(every.primal, rel=1e-2)


def test_label_sets_meet_the_optimum_of_the_linear_problem() -> None:
    sets, codes = several_labels(Y)
    with SerialExecutor(blocks=2) as executor:
        ours = solve(
            X, codes, MultilabelHinge(), LAM, method="fw_fully_corrective", kernel=RBF, tol=1e-2,
            executor=executor, label_sets=sets,
        )  # fmt: skip
    best = solve(psd_root(K), codes, MultilabelHinge(), LAM, tol=1e-6, max_passes=5000, label_sets=sets)
    assert ours.status is best.status is Status.SOLVED
    assert ours.dual <= best.primal
    assert best.dual <= ours.primal


# ---------------------------------------------------------------- state


@pytest.mark.parametrize("method", ["fw", "fw_fully_corrective"])
def test_a_run_goes_on_from_its_state_and_duals(method) -> None:
    short = on_blocks(MaxHinge(), method=method, max_passes=5)
    assert short.status is Status.MAX_PASSES
    resumed = on_blocks(MaxHinge(), method=method, state=short.state, duals=[(0, N, short.A)], blocks=7)
    assert resumed.status is Status.SOLVED
    assert resumed.history[0].dual == pytest.approx(short.dual, rel=1e-6)
    if method == "fw":
        assert resumed.history[-1].round == on_blocks(MaxHinge(), method=method).history[-1].round


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("at", [2, 4, 5, 6, 7, 8, 9, 11, 13])
@pytest.mark.parametrize("method", ["fw", "fw_fully_corrective"])
@pytest.mark.covering(1)
def test_lost_dual_variables_cost_rounds_and_no_digit(method, at: int, says: bool) -> None:
    executor = Forgetful(at, blocks=3, says=says)
    try:
        result = on_blocks(MaxHinge(), method=method, executor=executor)
    except StateLostError:
        assert not says
        result = on_blocks(MaxHinge(), method=method)
    assert result.status is Status.SOLVED
    assert result.relative_gap <= 1e-2
    assert result.primal == pytest.approx(on_blocks(MaxHinge(), method=method).primal, rel=1e-2)


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
