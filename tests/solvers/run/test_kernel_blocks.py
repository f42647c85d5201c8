"""The kernel problem on blocks: the optimum of a general solver for any blocks, messages, losses of state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from sklearn.kernel_approximation import Nystroem
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel

from tests.reference.training_qp import optimum
from tests.solvers.problems import LOSSES, Forgetful, M, examples, loss_name, solved_on_blocks
from topline import MaxHinge, RBFKernel, SerialExecutor, Softmax, Status, ThreadExecutor, TopKHinge
from topline import solve as solve_linear
from topline.solvers.blocks.kernel import Change, Mark
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import StoppingCriteria
from topline.solvers.errors import StateLostError
from topline.solvers.executors import block_bounds
from topline.solvers.methods import kernel
from topline.solvers.methods.kernel import KernelAscent
from topline.solvers.operations.kernel import PickRows, SpreadChange
from topline.solvers.run import ProblemSpec, task
from topline.solvers.run.loop import Ends, iterate

X, Y = examples()
N = len(Y)
LAM = 0.02
RBF = RBFKernel(0.3)
K = rbf_kernel(X, gamma=0.3)


def psd_root(K):
    """Features whose inner products are K, by eigenvalues."""
    values, vectors = np.linalg.eigh(K)
    return vectors * np.sqrt(np.maximum(values, 0.0))


def on_blocks(loss, smoothing=0.0, *, rows=X, labels=Y, kernel=RBF, blocks=2, tol=1e-6, **more):
    spec = ProblemSpec(loss, LAM, smoothing=smoothing, method="dual_ascent", kernel=kernel)
    with more.pop("executor", None) or SerialExecutor(blocks=blocks) as executor:
        return solved_on_blocks(spec, rows, labels, executor, tol=tol, **more)


@pytest.mark.parametrize("smoothing", [0.0, 0.5])
@pytest.mark.parametrize("loss", LOSSES, ids=loss_name)
def test_a_general_solver_finds_the_same_optimum(loss, smoothing) -> None:
    best = optimum(psd_root(K[:24, :24]), Y[:24], loss, LAM, smoothing, m=M)
    ours = on_blocks(loss, smoothing, rows=X[:24], labels=Y[:24])
    assert ours.status is Status.SOLVED
    assert ours.dual <= best * (1 + 1e-6)
    assert ours.primal == pytest.approx(best, rel=3e-6)


@pytest.mark.parametrize("blocks", [1, 2, 7])
@pytest.mark.parametrize("loss", [MaxHinge(), TopKHinge(3), Softmax()], ids=loss_name)
def test_the_optimum_does_not_depend_on_the_blocks(loss, blocks) -> None:
    linear = solve_linear(psd_root(K), Y, loss, LAM, tol=1e-8, max_passes=5000, of_duals=True, m=M)
    ours = on_blocks(loss, blocks=blocks)
    assert ours.relative_gap <= 1e-6
    # Each D bounds the other's P: both certificates speak of one problem.
    assert ours.dual <= linear.primal <= ours.primal * (1 + 1e-8)
    # The values are those of K and A, written out.
    scores = K @ ours.A / (LAM * N)
    assert ours.smoothed_gap == pytest.approx(ours.gap)
    assert 0.5 * LAM * np.sum(ours.A * scores) / (LAM * N) <= ours.primal


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("C", [10.0, 1000.0])
@pytest.mark.parametrize("given", ["kernel", "precomputed"])
def test_auto_solves_a_kernel_with_a_large_C_on_any_blocks(given, C, blocks) -> None:
    """Where classes overlap, dual ascent alone needs more than a thousand passes."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 8))
    labels = (rows @ rng.normal(size=(8, M)) + 0.8 * rng.normal(size=(300, M))).argmax(axis=1)
    shown, lam = rows @ rows.T if given == "precomputed" else rows, 1.0 / (300 * C)
    best = solve_linear(rows, labels, MaxHinge(), lam, method="newton", tol=1e-6, max_passes=5000, m=M)
    with SerialExecutor(blocks=blocks) as executor:
        form = "precomputed" if given == "precomputed" else "linear"
        options = {"kernel": form, "executor": executor, "max_passes": 250, "m": M}
        ours = solve_linear(shown, labels, MaxHinge(), lam, **options)
    assert (best.status, ours.status) == (Status.SOLVED, Status.SOLVED)
    assert "newton" in ours.method
    # The values of its scores, and of its A, written out.
    scores = ours.decision_function(shown)
    W = np.linalg.lstsq(rows, scores, rcond=None)[0]
    wrong = np.where(np.arange(M) == labels[:, None], -np.inf, scores).max(axis=1)
    loss = np.maximum(1.0 + wrong - scores[np.arange(300), labels], 0.0).mean()
    assert ours.primal == pytest.approx(0.5 * lam * np.sum(W**2) + loss, rel=1e-6)
    of_A = rows.T @ ours.A / (lam * 300)
    assert ours.dual == pytest.approx(
        ours.A[np.arange(300), labels].mean() - 0.5 * lam * np.sum(of_A**2), rel=1e-6
    )
    # Each bounds the other's.
    assert best.dual <= ours.primal * (1 + 1e-9)
    assert ours.dual <= best.primal * (1 + 1e-9)


def test_few_rows_at_a_time_give_the_same_optimum_and_the_dual_never_falls() -> None:
    problem = Problem(MaxHinge(), N, 1, M, LAM)
    duals = []
    with SerialExecutor(blocks=3) as executor:
        executor.bind(problem, X, Y, keep_duals=True)
        run = iterate(
            problem,
            executor,
            KernelAscent(3, tile=8, kernel=RBF),
            StoppingCriteria(tol=1e-6, max_passes=3000),
            Ends(duals_kept=True, of_duals=True),
            callbacks=[lambda record, _: duals.append(record.dual)],
        )
    assert run.status is Status.SOLVED
    assert len(duals) > 20
    assert np.diff(duals).min() >= -1e-7 * duals[-1]
    assert run.final.primal == pytest.approx(on_blocks(MaxHinge()).primal, rel=3e-6)


@pytest.mark.parametrize("kind", ["sparse", "float64", "weights", "threads"])
def test_kinds_of_rows(kind) -> None:
    weights = np.random.default_rng(0).uniform(0.2, 2.0, N) * (np.arange(N) != 4)
    rows = {"sparse": sparse.csr_matrix(X.astype(np.float32)), "float64": X.astype(np.float64)}.get(kind, X)
    given = weights if kind == "weights" else None
    ours = on_blocks(TopKHinge(2), rows=rows, weights=given, blocks=7 if kind == "threads" else 2)
    linear = solve_linear(
        psd_root(K), Y, TopKHinge(2), LAM, tol=1e-8, max_passes=5000, of_duals=True, m=M, sample_weight=given
    )
    assert ours.dual <= linear.primal <= ours.primal * (1 + 1e-6)


class Laplacian:
    """A kernel of somebody else's, known by `matrix` alone."""

    name = "laplacian of somebody"

    def resolved(self, X):
        return self

    def matrix(self, X, Y):
        return laplacian_kernel(X, Y, gamma=0.2)

    def to_dict(self):
        return {"name": self.name}


def test_a_kernel_that_knows_its_matrix_alone() -> None:
    ours = on_blocks(MaxHinge(), kernel=Laplacian())
    features = psd_root(laplacian_kernel(X, gamma=0.2))
    linear = solve_linear(features, Y, MaxHinge(), LAM, tol=1e-8, max_passes=5000, of_duals=True, m=M)
    assert ours.dual <= linear.primal <= ours.primal * (1 + 1e-6)


# ---------------------------------------------------------------- state


def test_a_run_goes_on_from_its_state_and_duals() -> None:
    short = on_blocks(MaxHinge(), max_passes=1, tol=1e-8)
    assert short.status is Status.MAX_PASSES
    with pytest.raises(StateLostError, match="without its duals"):
        on_blocks(MaxHinge(), state=short.state)
    # On other blocks than before.
    resumed = on_blocks(MaxHinge(), state=short.state, duals=[(0, N, short.A)], blocks=7, tol=1e-8)
    assert resumed.status is Status.SOLVED
    assert resumed.primal == pytest.approx(on_blocks(MaxHinge(), tol=1e-8).primal, rel=2e-8)


@pytest.mark.parametrize("landmarks", [10, 60])
def test_the_dual_variables_of_a_low_rank_kernel_are_a_start_at_their_best_multiple(landmarks) -> None:
    low = Nystroem(gamma=0.3, n_components=landmarks, random_state=0).fit_transform(X)
    A = solve_linear(low, Y, MaxHinge(), LAM, method="dual_ascent", keep_duals=True, m=M).A.astype(float)
    # alpha_i = e_y - p_i with p_i on the simplex, and -Phi*(-alpha_i) = 1 - p_iy.
    b = float(A[np.arange(N), Y].mean())
    square = float(np.einsum("ij,ij->", A, K @ A)) / (LAM * N**2)
    share = min(b / square, 1.0)
    started = on_blocks(MaxHinge(), duals=[(0, N, A)])
    assert started.history[0].dual == pytest.approx(share * b - 0.5 * share**2 * square, rel=1e-5)
    assert started.primal == pytest.approx(on_blocks(MaxHinge()).primal, rel=2e-6)


def test_a_start_outside_the_domain_is_put_inside() -> None:
    whole = on_blocks(MaxHinge())
    started = on_blocks(MaxHinge(), duals=[(0, N, 5.0 * whole.A)])
    assert max(record.dual for record in started.history) <= whole.primal
    assert started.primal == pytest.approx(whole.primal, rel=2e-6)


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("at", [2, 3, 5, 7])
def test_lost_dual_variables_cost_rounds_and_no_digit(at: int, says: bool) -> None:
    executor = Forgetful(at, blocks=3, says=says)
    try:
        result = on_blocks(MaxHinge(), executor=executor)
    except StateLostError:
        # A loss that nobody told of is found where scores are needed; the caller then starts again.
        assert not says
        result = on_blocks(MaxHinge(), executor=executor)
    assert result.status is Status.SOLVED
    assert result.primal == pytest.approx(on_blocks(MaxHinge()).primal, rel=3e-6)


def test_a_request_that_comes_twice_changes_nothing_more() -> None:
    problem = Problem(MaxHinge(), N, 1, M, LAM)
    change = Change(np.array([1, 40]), X[[1, 40]], np.eye(M)[:2].astype(np.float32) * 0.1)
    spread = SpreadChange(kernel=RBF, mark=Mark(), change=change, after=Mark(0, 1))
    with SerialExecutor(blocks=3) as executor:
        executor.bind(problem, X, Y, keep_duals=True)
        executor.run(spread)
        once = executor.run(PickRows(kernel=RBF, mark=Mark(0, 1)))
        executor.run(spread)
        twice = executor.run(PickRows(kernel=RBF, mark=Mark(0, 1)))
        assert (once.loss, once.alpha_s, once.alpha_sq) == (twice.loss, twice.alpha_s, twice.alpha_sq)
        assert executor.run(PickRows(kernel=RBF, mark=Mark(0, 2))).stale == N
        A = np.concatenate([rows for _, _, rows in executor.duals()])
    expected = np.zeros((N, M))
    expected[[1, 40]] = change.values
    np.testing.assert_array_equal(A, expected.astype(np.float32))


def test_which_rows_are_picked_does_not_depend_on_the_blocks() -> None:
    problem = Problem(MaxHinge(), N, 1, M, LAM)
    request = PickRows(kernel=RBF, mark=Mark(), rate=0.3, seed=7)
    found = []
    for blocks in (1, 2, 7):
        with SerialExecutor(blocks=blocks) as executor:
            executor.bind(problem, X, Y, keep_duals=True)
            found.append(executor.run(request).picked)
            again = executor.run(replace(request, seed=8)).picked
        assert not np.array_equal(found[-1].numbers, again.numbers)
    for rows in found:
        np.testing.assert_array_equal(rows.numbers, found[0].numbers)
        np.testing.assert_array_equal(rows.X, X[rows.numbers])
        assert 0 < len(rows.numbers) < N


def test_solve_takes_blocks_where_there_are_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    factored = solve_linear(X, Y, MaxHinge(), LAM, kernel=RBF, tol=1e-6)
    monkeypatch.setitem(task.ON_BLOCKS, "dual_ascent", 10)
    with ThreadExecutor(2, bounds=block_bounds(N, 3)) as executor:
        ours = solve_linear(X, Y, MaxHinge(), LAM, kernel=RBF, tol=1e-6, executor=executor)
    assert ours.primal == pytest.approx(factored.primal, rel=3e-6)
    np.testing.assert_allclose(ours.decision_function(X), K @ ours.A / (LAM * N), rtol=1e-6, atol=1e-9)


def change_of(*numbers: int) -> Change:
    rows = np.array(numbers, dtype=np.int64)
    return Change(rows, rows[:, None].astype(np.float32), np.ones((len(rows), 2)))


def test_rows_of_the_dual_are_spread_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "COLLECTED", 4)
    parts = [
        change_of(0),
        None,
        change_of(3, 4),
        change_of(),
        change_of(9),
        change_of(10, 11, 12),
        change_of(20),
    ]
    found = list(kernel.gathered(iter(parts)))
    assert [list(change.numbers) for change in found] == [[0, 3, 4, 9], [10, 11, 12, 20]]
    assert [list(change.X[:, 0]) for change in found] == [[0, 3, 4, 9], [10, 11, 12, 20]]
    assert list(kernel.gathered([None, change_of()])) == []
