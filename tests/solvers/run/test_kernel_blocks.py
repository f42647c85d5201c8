"""The kernel problem on blocks, by ascent and by vertices: the optimum of a general solver, on few rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import combinations, product

import numpy as np
import pytest
from scipy import sparse
from sklearn.kernel_approximation import Nystroem
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel

from tests.reference.training_qp import optimum
from tests.solvers.problems import (
    LOSSES,
    Forgetful,
    M,
    examples,
    loss_name,
    psd_root,
    several_labels,
    solved_on_blocks,
)
from topline import (
    InvalidProblemError,
    MaxHinge,
    MultilabelHinge,
    PrecomputedKernel,
    RBFKernel,
    SerialExecutor,
    Softmax,
    Status,
    ThreadExecutor,
    TopKHinge,
    UnsupportedCombinationError,
    solve,
)
from topline import solve as solve_linear
from topline.solvers.blocks.kernel import ITSELF, Change, Mark
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import StoppingCriteria
from topline.solvers.errors import StateLostError
from topline.solvers.executors import block_bounds
from topline.solvers.methods import kernel
from topline.solvers.methods.kernel import KernelAscent
from topline.solvers.operations.kernel import (
    FindCrossValues,
    FindKernelVertices,
    MultiplyAtoms,
    PickRows,
    ReweighAtoms,
    SpreadChange,
)
from topline.solvers.run import ProblemSpec, compress, compression, task
from topline.solvers.run.loop import iterate

X, Y = examples()
N = len(Y)
LAM = 0.02
RBF = RBFKernel(0.3)
K = rbf_kernel(X, gamma=0.3)


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
            StoppingCriteria(tol=1e-6, max_passes=3000, of_duals=True),
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


@pytest.mark.parametrize("lost", [None, 1])
def test_blocks_that_lack_picked_rows_are_told(lost) -> None:
    """Values of no row, or of fewer than were picked, are not taken for those of all."""

    class Lacking(SerialExecutor):
        def run(self, request):
            answer = super().run(request)
            if isinstance(request, FindCrossValues):
                return replace(answer, values=None if lost is None else answer.values[lost:])
            return answer

    with pytest.raises(StateLostError, match="the blocks lack rows that were picked"):
        on_blocks(MaxHinge(), rows=K, kernel=PrecomputedKernel(), executor=Lacking(blocks=2))


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


VERTEX_METHODS = ["fw", "fw_away", "fw_pairwise", "fw_fully_corrective"]


def by_vertices(loss, smoothing=0.0, *, method="fw_fully_corrective", blocks=2, executor=None, **more):
    spec = ProblemSpec(loss, LAM, smoothing=smoothing, method=method, kernel=RBF)
    rows, labels = more.pop("rows", X), more.pop("labels", Y)
    with executor or SerialExecutor(blocks=blocks) as found:
        return solved_on_blocks(spec, rows, labels, found, **{"tol": 1e-2, **more})


def on_root(loss, smoothing=0.0, method="auto", tol=1e-7, **more):
    of_duals = {"of_duals": True, "keep_duals": True} if method in ("fw", "auto") else {}
    return solve(
        psd_root(K), Y, loss, LAM, smoothing, method, tol=tol, max_passes=5000, m=M, **of_duals, **more
    )


@pytest.mark.parametrize("blocks", [1, 2, 7])
@pytest.mark.parametrize("method", VERTEX_METHODS)
def test_rounds_are_those_of_the_linear_problem_whatever_the_blocks(method, blocks) -> None:
    """The same vertices and atoms in the features of K, until rounding chooses among equal vertices."""
    duals, loss = [], TopKHinge(3 if method == "fw" else 2)
    ours = by_vertices(
        loss, method=method, blocks=blocks, callbacks=[lambda record, _: duals.append(record.dual)]
    )
    theirs = on_root(loss, method=method, tol=1e-2)
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
    ours = by_vertices(loss, smoothing, method=method)
    best = on_root(loss, smoothing)
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
def test_frank_wolfe_finds_the_optimum_of_a_general_solver(loss, smoothing) -> None:
    best = optimum(psd_root(K[:24, :24]), Y[:24], loss, LAM, smoothing, m=M)
    ours = by_vertices(loss, smoothing, rows=X[:24], labels=Y[:24], tol=1e-5)
    assert ours.status is Status.SOLVED
    assert ours.dual <= best * (1 + 1e-6)
    assert ours.primal == pytest.approx(best, rel=2e-5)


@pytest.mark.parametrize("method", ["fw", "fw_fully_corrective"])
def test_weights_count_and_a_smooth_loss_is_bounded(method) -> None:
    weights = np.random.default_rng(0).uniform(0.2, 2.0, N) * (np.arange(N) != 4)
    for loss in (TopKHinge(2), Softmax()):
        ours = by_vertices(loss, method=method, weights=weights)
        best = on_root(loss, sample_weight=weights)
        assert ours.relative_gap <= 1e-2
        assert ours.dual <= best.primal * (1 + 1e-9)
        assert best.dual <= ours.primal * (1 + 1e-9)


def test_a_tight_gap_goes_over_to_float64() -> None:
    ours = by_vertices(Softmax(), method="fw", tol=1e-7)
    assert ours.status is Status.SOLVED
    assert ours.primal == pytest.approx(on_root(Softmax(), tol=1e-8).primal, rel=2e-7)


def test_few_atoms_are_mixed_and_end_at_the_same_optimum(monkeypatch) -> None:
    every = by_vertices(MaxHinge())
    monkeypatch.setattr(kernel, "ATOM_BYTES", 0)
    few = by_vertices(MaxHinge())
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


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize(
    ("method", "at"),
    [("dual_ascent", at) for at in (2, 3, 5, 7)]
    + list(product(("fw", "fw_fully_corrective"), (2, 4, 5, 6, 7, 8, 9, 11, 13))),
)
@pytest.mark.covering(1)
def test_lost_dual_variables_cost_rounds_and_no_digit(method, at: int, says: bool) -> None:
    ascends = method == "dual_ascent"
    solved = on_blocks if ascends else partial(by_vertices, method=method)
    executor = Forgetful(at, blocks=3, says=says)
    try:
        result = solved(MaxHinge(), executor=executor)
    except StateLostError:
        # A loss that nobody told of is found where scores are needed; the caller then starts again.
        assert not says
        result = solved(MaxHinge(), executor=executor if ascends else None)
    assert result.status is Status.SOLVED
    assert result.relative_gap <= 1e-2
    assert result.primal == pytest.approx(solved(MaxHinge()).primal, rel=3e-6 if ascends else 1e-2)


def test_vertices_are_mixed_when_all_of_their_parts_are_spread() -> None:
    at, parts = Mark(), [Mark(part=part) for part in range(3)]
    change = Change(np.array([1, 40]), X[[1, 40]], np.eye(M)[:2].astype(np.float32))
    find = FindKernelVertices(kernel=RBF, mark=at)
    spread = SpreadChange(kernel=RBF, mark=at, change=change, after=parts[1], moves=False, vertices=True)
    mix = MultiplyAtoms(kernel=RBF, mark=at, atoms=(ITSELF,), found=parts[1])
    step = ((ITSELF, 0.75), (0, 0.25))
    with SerialExecutor(blocks=3) as executor:
        executor.bind(Problem(MaxHinge(), N, 1, M, LAM), X, Y, keep_duals=True)
        assert executor.run(mix).stale == N
        assert executor.run(find).changed == N
        executor.run(spread)
        assert executor.run(mix).stale == 0
        assert executor.run(replace(mix, found=parts[2])).stale == N
        reweigh = ReweighAtoms(
            kernel=RBF, mark=at, newest=0, found=parts[1], kept=(), weights=step, after=Mark(0, 1)
        )
        executor.run(reweigh)
        assert executor.run(find).stale == N
        assert executor.run(replace(find, mark=Mark(0, 1), of=Mark(3, 3))).stale == N
        A = np.concatenate([rows for _, _, rows in executor.duals()])
    # Max hinge at scores 0: the vertex of a row is that of one other class.
    assert np.count_nonzero(A, axis=1).tolist() == [2] * N
    np.testing.assert_allclose(A[np.arange(N), Y], 0.25)


CLOUDS, LABELS = examples(n=120)


def objective(few, loss, weights=1.0) -> float:
    """P of a compressed model, from scikit-learn's kernel values."""
    C, rows = few.expansion.coefficients, few.expansion.rows
    S = rbf_kernel(CLOUDS, rows, gamma=0.3) @ C
    own = S[np.arange(len(LABELS)), LABELS][:, None]
    if isinstance(loss, Softmax):
        losses = np.log(np.exp(S - own).sum(axis=1))
    else:
        margins = S - own + (np.arange(M) != LABELS[:, None])
        losses = np.maximum(np.sort(margins, axis=1)[:, -getattr(loss, "k", 1) :].mean(axis=1), 0.0)
    return 0.5 * LAM * np.sum(C * (rbf_kernel(rows, gamma=0.3) @ C)) + np.mean(weights * losses)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", [MaxHinge(), TopKHinge(2), Softmax()], ids=loss_name)
@pytest.mark.covering(1)
def test_the_objective_is_what_it_says_and_within_the_share(loss, weighted) -> None:
    weights = np.random.default_rng(0).uniform(0.5, 1.5, len(LABELS)) if weighted else None
    result = solve(CLOUDS, LABELS, loss, LAM, kernel=RBF, tol=1e-4, sample_weight=weights)
    sizes = []
    for share in (0.1, 0.01):
        few = compress(result.expansion, CLOUDS, LABELS, result.problem, share, weights)
        assert few.primal == pytest.approx(
            objective(few, loss, 1.0 if weights is None else weights), rel=1e-8
        )
        assert few.of_model == pytest.approx(result.primal, rel=1e-6)
        assert result.dual <= few.primal <= (1 + share) * few.of_model
        np.testing.assert_array_equal(few.expansion.rows, CLOUDS[few.expansion.support])
        assert set(few.expansion.support) <= set(result.expansion.support)
        sizes.append(len(few.expansion.support))
    assert sizes[0] < sizes[1] < len(result.expansion.support)


def test_hardly_more_rows_than_the_fewest_there_are() -> None:
    """Every subset of eight rows, each with the best coefficients that a general solver finds for it."""
    rows, labels = CLOUDS[:8], np.arange(8) % 3
    result = solve(rows, labels, MaxHinge(), LAM, kernel=RBF, tol=1e-6)
    root = psd_root(rbf_kernel(rows, gamma=0.3))

    def best(chosen) -> float:
        basis = np.linalg.qr(root[list(chosen)].T)[0]
        return optimum(root @ basis, labels, MaxHinge(), LAM, m=3)

    share, few = 0.1, 1
    while min(best(chosen) for chosen in combinations(range(8), few)) > (1 + share) * result.primal:
        few += 1
    found = compress(result.expansion, rows, labels, result.problem, share)
    assert few <= len(found.expansion.support) <= few + 1


def test_no_loss_to_speak_of_is_the_model_itself() -> None:
    result = solve(CLOUDS, LABELS, MaxHinge(), LAM, kernel=RBF, tol=1e-6)
    few = compress(result.expansion, CLOUDS, LABELS, result.problem, 1e-9)
    assert few.loss <= 1e-9
    np.testing.assert_allclose(few.expansion.scores(CLOUDS), result.decision_function(CLOUDS), atol=1e-3)


def test_what_cannot_be_compressed_is_refused() -> None:
    result = solve(CLOUDS, LABELS, MaxHinge(), LAM, kernel=RBF)
    for share in (0.0, 1.0):
        with pytest.raises(InvalidProblemError, match="give a share of the objective"):
            compress(result.expansion, CLOUDS, LABELS, result.problem, share)
    with pytest.raises(InvalidProblemError, match="give the 120 rows"):
        compress(result.expansion, CLOUDS[:50], LABELS[:50], result.problem, 0.1)
    K = rbf_kernel(CLOUDS, gamma=0.3)
    values = solve(K, LABELS, MaxHinge(), LAM, kernel="precomputed")
    with pytest.raises(UnsupportedCombinationError, match="tells no values with single rows"):
        compress(values.expansion, K, LABELS, values.problem, 0.1)


def test_more_rows_than_memory_holds_are_refused_before_they_are_picked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = solve(CLOUDS, LABELS, MaxHinge(), LAM, kernel=RBF)
    monkeypatch.setattr(compression, "MEMORY_BYTES", 50 * 16 * len(LABELS))
    with pytest.raises(InvalidProblemError, match="allow a larger loss"):
        compress(result.expansion, CLOUDS, LABELS, result.problem, 1e-6)
