"""Away, pairwise and fully corrective Frank-Wolfe on the blocks of a kernel."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference.training_qp import optimum
from tests.solvers.problems import Forgetful, M, loss_name, several_labels, solved_on_blocks
from tests.solvers.run.test_kernel_blocks import LAM, RBF, K, N, X, Y, psd_root
from topline import MaxHinge, MultilabelHinge, SerialExecutor, Softmax, Status, TopKHinge, solve
from topline.solvers.errors import StateLostError
from topline.solvers.methods import kernel
from topline.solvers.run import ProblemSpec


def on_blocks(
    loss, smoothing=0.0, *, method="fw_fully_corrective", blocks=2, tol=1e-2, executor=None, **more
):
    rows, labels = more.pop("rows", X), more.pop("labels", Y)
    spec = ProblemSpec(loss, LAM, smoothing=smoothing, method=method, kernel=RBF)
    with executor or SerialExecutor(blocks=blocks) as found:
        return solved_on_blocks(spec, rows, labels, found, tol=tol, **more)


@pytest.mark.parametrize("blocks", [1, 7])
@pytest.mark.parametrize("method", ["fw_away", "fw_pairwise", "fw_fully_corrective"])
def test_rounds_are_those_of_the_linear_problem_whatever_the_blocks(method, blocks) -> None:
    """The same atoms in the features of K, until rounding chooses among equal vertices."""
    duals = []
    ours = on_blocks(
        TopKHinge(2), method=method, blocks=blocks, callbacks=[lambda record, _: duals.append(record.dual)]
    )
    theirs = solve(psd_root(K), Y, TopKHinge(2), LAM, method=method, tol=1e-2, max_passes=2000, m=M)
    assert ours.status is theirs.status is Status.SOLVED
    first = min(len(duals), theirs.passes, 25)
    np.testing.assert_allclose(duals[:first], [record.dual for record in theirs.history[:first]], rtol=1e-5)
    assert np.diff(duals).min() > -1e-7 * duals[-1]
    assert ours.dual <= theirs.primal * (1 + 1e-9)
    assert theirs.dual <= ours.primal * (1 + 1e-9)


@pytest.mark.parametrize("smoothing", [0.0, 0.5])
@pytest.mark.parametrize("loss", [MaxHinge(), TopKHinge(3)], ids=loss_name)
def test_a_general_solver_finds_the_same_optimum(loss, smoothing) -> None:
    best = optimum(psd_root(K[:24, :24]), Y[:24], loss, LAM, smoothing, m=M)
    ours = on_blocks(loss, smoothing, rows=X[:24], labels=Y[:24], tol=1e-5)
    assert ours.status is Status.SOLVED
    assert ours.dual <= best * (1 + 1e-6)
    assert ours.primal == pytest.approx(best, rel=2e-5)


def test_weights_count_and_a_smooth_loss_is_bounded() -> None:
    weights = np.random.default_rng(0).uniform(0.2, 2.0, N) * (np.arange(N) != 4)
    for loss in (MaxHinge(), Softmax()):
        ours = on_blocks(loss, weights=weights)
        best = solve(psd_root(K), Y, loss, LAM, tol=1e-7, m=M, max_passes=5000, sample_weight=weights)
        assert ours.relative_gap <= 1e-2
        assert ours.dual <= best.primal * (1 + 1e-9)
        assert best.dual <= ours.primal * (1 + 1e-9)


def test_few_atoms_are_mixed_and_end_at_the_same_optimum(monkeypatch) -> None:
    every = on_blocks(MaxHinge())
    monkeypatch.setattr(kernel, "ATOM_BYTES", 0)
    few = on_blocks(MaxHinge())
    assert few.status is Status.SOLVED
    assert len(few.state.memory.atoms.names) <= 4 < len(every.state.memory.atoms.names)
    assert few.primal == pytest.approx(every.primal, rel=1e-2)


def test_a_run_goes_on_from_its_dual_variables() -> None:
    short = on_blocks(MaxHinge(), max_passes=5)
    assert short.status is Status.MAX_PASSES
    resumed = on_blocks(MaxHinge(), state=short.state, duals=[(0, N, short.A)], blocks=7)
    assert resumed.status is Status.SOLVED
    assert resumed.relative_gap <= 1e-2
    assert resumed.history[0].dual == pytest.approx(short.dual, rel=1e-6)


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("at", [2, 5, 8, 9, 13])
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
