"""Runs that begin elsewhere, stop and go on: what is certified holds, and budgets are kept."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csc_matrix, csr_matrix
from sklearn.datasets import load_digits
from sklearn.preprocessing import normalize

from tests.reference import losses as reference
from tests.solvers.problems import M, Requests, examples
from topline import (
    InvalidProblemError,
    MaxHinge,
    OneVsAll,
    RBFKernel,
    SerialExecutor,
    Softmax,
    Status,
    TopKEntropy,
    TopKHinge,
    TopKOthersHinge,
    TruncatedTopKEntropy,
    UnsupportedCombinationError,
    UsunierHinge,
    regularisation_path,
    solve,
)
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import SolverState, StoppingCriteria
from topline.solvers.errors import StateLostError
from topline.solvers.methods import METHODS, method_named
from topline.solvers.methods.dual_ascent import DualAscent
from topline.solvers.operations import PutInside, Rebuild
from topline.solvers.run import iterate
from topline.solvers.run import loop as iteration

N, LAM = 60, 0.05
X, Y = examples(n=N, d=8, spread=1.5)
LOSSES = [
    MaxHinge(), TopKHinge(2), UsunierHinge(2), TopKOthersHinge(2), Softmax(), TopKEntropy(2),
    OneVsAll("hinge"), OneVsAll("logistic"),
]  # fmt: skip


def distortions(A):
    """Give A as it is not: too long, noisy, with the wrong sign, of other examples."""
    noise = np.random.default_rng(0).normal(size=A.shape)
    return {
        "longer": 1.05 * A,
        "much longer": 30.0 * A,
        "noisy": A + 0.03 * noise,
        "noise": noise,
        "turned": -A,
        "of other rows": A[::-1],
        "float32": (A + 0.03 * noise).astype(np.float32),
    }


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@pytest.mark.parametrize("method", ["auto", "dual_ascent", "fw"])
@pytest.mark.sampled(6)
def test_rows_outside_their_domain_claim_no_dual_value_beyond_the_optimum(loss, method) -> None:
    """The dual bounds every primal value from below, the optimal one of a run from zero too."""
    best = solve(X, Y, loss, LAM, tol=1e-6, max_passes=20_000, keep_duals=True)
    for name, A in distortions(best.A).items():
        result = solve(
            X, Y, loss, LAM, method=method, keep_duals=True, tol=3e-2, max_passes=2000, duals=[(0, N, A)],
            executor=SerialExecutor(blocks=3),
        )  # fmt: skip
        assert result.status is Status.SOLVED, name
        for record in result.history:
            assert record.dual <= best.primal * (1 + 1e-5), name
        assert result.dual <= best.primal * (1 + 1e-9), name


def test_duals_of_other_weights_start_a_run() -> None:
    weights = np.random.default_rng(1).uniform(0.2, 3.0, N)
    weighted = solve(X, Y, TopKHinge(2), LAM, tol=1e-4, max_passes=5000, sample_weight=weights)
    best = solve(X, Y, TopKHinge(2), LAM, tol=1e-6, max_passes=20_000)
    result = solve(X, Y, TopKHinge(2), LAM, tol=1e-4, max_passes=5000, duals=[(0, N, weighted.A)])
    assert result.status is Status.SOLVED
    assert result.primal == pytest.approx(best.primal, rel=2e-4)
    assert result.dual <= best.primal * (1 + 1e-9)


@pytest.mark.parametrize("d", [8, 140], ids=["newton", "lbfgs"])
def test_a_smooth_loss_goes_on_from_duals_by_the_method_that_it_takes_anyway(d) -> None:
    X, y = examples(n=N, d=d, spread=1.5)
    far = solve(X, y, Softmax(), LAM, tol=1e-8, keep_duals=True)
    near = solve(X, y, Softmax(), 0.9 * LAM, tol=1e-8, duals=[(0, N, far.A)])
    cold = solve(X, y, Softmax(), 0.9 * LAM, tol=1e-8)
    assert near.method == cold.method == far.method
    assert near.history[0].gap < 0.2 * cold.history[0].gap
    assert near.primal == pytest.approx(cold.primal, rel=1e-7)
    assert near.A is not None


@pytest.mark.parametrize(
    ("duals", "message"),
    [
        (np.zeros((N, 5)), r"give \[\(0, n, result.A\)\]"),
        ([(0, N, "A")], r"give \[\(0, n, result.A\)\]"),
        ([(0, N, np.full((N, 5), np.nan))], f"rows 0:{N} hold NaN"),
    ],
    ids=["an array", "words", "NaN"],
)
@pytest.mark.parametrize(
    "options", [{}, {"kernel": RBFKernel(0.1), "method": "fw_away"}], ids=["linear", "kernel"]
)
def test_what_are_no_duals_is_refused(duals, message, options) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        solve(X, Y, MaxHinge(), LAM, duals=duals, **options)


def test_duals_of_nearly_the_same_rows_are_gone_on_from_in_fewer_passes() -> None:
    """Four of 400 rows are left out: the same optimum within the gap, two rounds are not measured."""
    rows, y = load_digits(return_X_y=True)
    rows, y = normalize(rows[:400]), y[:400]
    kept = np.sort(np.random.default_rng(0).permutation(400)[4:])
    passes = {False: 0, True: 0}
    for C in (1.0, 10.0):
        before = solve(rows, y, MaxHinge(), 1.0 / (400 * C), tol=1e-4, keep_duals=True)
        found = {
            near: solve(
                rows[kept], y[kept], MaxHinge(), 1.0 / (396 * C), tol=1e-4,
                duals=[(0, 396, before.A[kept])], duals_near=near,
            )
            for near in passes
        }  # fmt: skip
        assert found[True].dual <= found[False].primal
        assert found[False].dual <= found[True].primal
        for near, result in found.items():
            assert result.status is Status.SOLVED
            passes[near] += result.passes
        # The first round is not measured; where its gap is small enough the certificate follows at once.
        at_zero = [record.primal for record in found[True].history[:3]]
        assert at_zero[0] == pytest.approx(1.0)
        assert at_zero[2] < 1.0
    assert passes[True] < 0.8 * passes[False]  # 55 of 72


@pytest.mark.parametrize("tol", [0.1, 1e-5])
def test_a_smooth_loss_moves_from_a_near_start_and_takes_few_passes(tol) -> None:
    """All of its rows move, so that none of them is gone over alone before the others."""
    before = solve(X, Y, Softmax(), LAM, method="dual_ascent", tol=1e-6)
    kept = np.arange(N) >= 2
    rest = partial(solve, X[kept], Y[kept], Softmax(), LAM * N / (N - 2), method="dual_ascent", tol=tol)
    anew, result = rest(), rest(duals=[(0, N - 2, before.A[kept])], duals_near=True)
    assert result.status is Status.SOLVED
    assert result.passes < anew.passes
    assert np.abs(result.A - before.A[kept]).max() > 1e-4
    assert result.dual <= anew.primal


def test_several_blocks_measure_every_round_of_a_near_start() -> None:
    before = solve(X, Y, MaxHinge(), LAM, tol=1e-4, keep_duals=True)
    kept = np.arange(N) >= 2
    A = [(0, N - 2, before.A[kept])]
    with SerialExecutor(blocks=3) as executor:
        result = solve(
            X[kept],
            Y[kept],
            MaxHinge(),
            LAM * N / (N - 2),
            tol=1e-4,
            duals=A,
            duals_near=True,
            executor=executor,
        )
    assert result.status is Status.SOLVED
    assert result.history[0].primal != pytest.approx(1.0)


@pytest.mark.parametrize("method", ["newton", "lbfgs"])
def test_weights_that_other_rows_made_are_no_answer_however_good_they_are(method) -> None:
    """Two of 60 rows are left out; with a tolerance of a tenth the weights of all of them would do."""
    kept, lam = np.arange(N) >= 2, LAM * N / (N - 2)
    before = solve(X, Y, Softmax(), LAM, method=method, tol=1e-6)
    start = SolverState.at(before.W)
    stays, leaves = (
        solve(X[kept], Y[kept], Softmax(), lam, method=method, tol=0.1, state=state)
        for state in (start, replace(start, left_behind=True))
    )
    exact = solve(X[kept], Y[kept], Softmax(), lam, method=method, tol=1e-6)
    assert np.array_equal(stays.W, before.W)
    assert leaves.status is Status.SOLVED
    assert leaves.primal < stays.primal
    assert np.linalg.norm(leaves.W - exact.W) < 0.7 * np.linalg.norm(before.W - exact.W)


def test_plain_passes_of_a_near_start_are_certified_once() -> None:
    """What they leave nobody has looked at: the rounds' own measurements say when the certificate follows."""
    rows, y = load_digits(return_X_y=True)
    rows, y = normalize(rows[:400]), y[:400]
    before = solve(rows, y, TopKHinge(2), 0.01, tol=1e-5, keep_duals=True)
    kept = np.arange(400) >= 4
    executor = Requests()
    result = solve(
        rows[kept], y[kept], TopKHinge(2), 0.01 * 400 / 396, method="sdca", tol=1e-5, max_passes=600,
        duals=[(0, 396, before.A[kept])], duals_near=True, executor=executor,
    )  # fmt: skip
    assert result.status is Status.SOLVED
    assert sum(isinstance(each, PutInside | Rebuild) for each in executor.seen) < 10


def run(X, y, smoothing, method="fw", **options):
    options = {"tol": 1e-9, "max_passes": 24, "m": M, **options}
    return solve(X, y, TopKHinge(2), 0.05, smoothing, method, executor=SerialExecutor(blocks=3), **options)


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


SOFTMAX_LAM, GAPS = 2e-4, (0.2, 0.05, 1e-3)


def stages(loss, gaps, certified):
    X, y = examples(n=300)
    problem = Problem(loss, *X.shape, M, SOFTMAX_LAM)
    method = method_named("dual_ascent").method_for(problem, 1, 0)
    runs, start = [], None
    with SerialExecutor() as executor:
        executor.bind(problem, X, y, keep_duals=True)
        for gap in gaps:
            run = iterate(problem, executor, method, StoppingCriteria(gap, certified=certified), start)
            start = run.measured or run.state
            A = np.concatenate([rows for _, _, rows in executor.duals(run.state.pending_step)])
            runs.append((run, A))
    return X, y, runs


@pytest.mark.parametrize("loss", [TopKHinge(2), Softmax()], ids=lambda loss: loss.name)
def test_stages_take_about_the_passes_of_one_run_and_come_as_near_to_the_optimum(loss) -> None:
    """Not the same: a round ends where the gap that is asked for seems to be reached."""
    _, _, apart = stages(loss, GAPS, certified=False)
    _, _, whole = stages(loss, GAPS[-1:], certified=False)
    last, once = apart[-1][0], whole[-1][0]
    assert last.state.passes == pytest.approx(once.state.passes, rel=0.1)
    # Both lie within a gap of the optimum in P, and so in lam/2 |W - W*|^2.
    between = 0.5 * SOFTMAX_LAM * float(np.sum((last.final.W - once.final.W) ** 2))
    assert between <= 2.0 * (last.final.gap + once.final.gap)
    assert [run.state.passes for run, _ in apart] == sorted({run.state.passes for run, _ in apart})


@pytest.mark.parametrize("loss", [TopKHinge(2), Softmax()], ids=lambda loss: loss.name)
@pytest.mark.parametrize("certified", [False, True])
def test_the_values_of_a_stage_are_those_of_its_weights_and_dual_variables(loss, certified) -> None:
    """In float64; the rounds' products are in float32, whose rounding is far below a gap of 1e-3."""
    X, y, runs = stages(loss, GAPS, certified)
    for (run, A), gap in zip(runs, GAPS, strict=True):
        final = run.final
        assert run.certified is certified
        assert final.relative_gap <= gap
        rounding = 1e-9 if certified else 1e-5
        assert final.primal == pytest.approx(
            reference.primal(X, y, loss, SOFTMAX_LAM, 0.0, final.W), rel=rounding
        )
        assert final.dual == pytest.approx(reference.dual(X, y, loss, SOFTMAX_LAM, 0.0, A), rel=1e-5)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "lbfgs"])
@pytest.mark.parametrize("passes", [1, 2, 5, 11])
@pytest.mark.covering(1)
def test_no_run_exceeds_its_passes(method, passes) -> None:
    X, y = examples(n=40)
    result = solve(X, y, TopKHinge(2), 1e-4, method=method, tol=1e-12, max_passes=passes, m=M)
    assert result.status is Status.MAX_PASSES
    assert result.passes <= passes


@pytest.mark.parametrize("blocks", [1, 3])
def test_a_budget_is_used_up_by_sweeps_that_are_cut_off(blocks) -> None:
    X, y = examples(n=200)
    with SerialExecutor(blocks=blocks) as executor:
        ends = [
            solve(
                X, y, TopKHinge(2), 1e-5, method="dual_ascent", tol=1e-12, max_passes=passes, m=M,
                executor=executor,
            ).passes
            for passes in range(2, 40, 3)
        ]  # fmt: skip
    assert ends == sorted(ends)
    assert all(passes - 1 <= end <= passes for passes, end in zip(range(2, 40, 3), ends, strict=True))


def test_a_look_at_the_gap_of_rows_stays_within_the_passes() -> None:
    X, y = examples(n=40)
    wanted = [(passes, tol) for passes in range(1, 12) for tol in (1e-3, 1e-6, 1e-10)]
    ends = [
        solve(X, y, Softmax(), 0.1, method="dual_ascent", tol=tol, max_passes=passes, m=M).passes
        for passes, tol in wanted
    ]
    assert all(end <= passes for end, (passes, _) in zip(ends, wanted, strict=True))


def test_a_time_limit_ends_sweeps_before_all_rows_were_visited() -> None:
    X, y = examples(n=9000)
    limit = 1e-6  # over before the first row
    result = solve(X, y, TopKHinge(2), 1e-5, tol=1e-12, time_limit=limit, m=M)
    assert result.status is Status.TIME_LIMIT
    assert result.passes == 0


class Hopeful(DualAscent):
    """Takes every round for the last, which the certificate then denies."""

    def advance(self, *arguments):
        return replace(super().advance(*arguments), claims=True)


def test_a_time_limit_does_not_count_the_seconds_of_earlier_runs() -> None:
    """No second of this run has passed when a round turns out not to have been the last."""
    X, y = examples(n=200)
    problem = Problem(TopKHinge(2), *X.shape, M, 1e-3)
    earlier = replace(SolverState.start(problem), seconds=1000.0)
    with SerialExecutor() as executor:
        executor.bind(problem, X, y, keep_duals=True)
        criteria = StoppingCriteria(tol=1e-3, time_limit=100.0)
        run = iterate(problem, executor, Hopeful(), criteria, earlier, clock=lambda: 0.0)
    assert run.status is Status.SOLVED
    assert len(run.history) > 1
    assert run.state.seconds == 1000.0


def test_labels_that_leave_classes_out_are_asked_about() -> None:
    X, y = examples(n=30)
    with pytest.raises(InvalidProblemError, match=r"largest label is 1000004, but class 0 and .* m=1000005"):
        solve(X, y + 10**6, TopKHinge(2), 0.1)
    with pytest.raises(InvalidProblemError, match="class 1 and 3 more below it have no example"):
        solve(X, np.where(y == 0, 0, 5), TopKHinge(2), 0.1)
    assert solve(X, np.where(y == 0, 0, 5), TopKHinge(2), 0.1, m=6).W.shape == (4, 6)


def test_a_tolerance_that_float64_does_not_resolve_is_refused() -> None:
    X, y = examples(n=30)
    with pytest.raises(InvalidProblemError, match=r"tol is 1e-15, .*at least 1e-14"):
        solve(X, y, Softmax(), 0.1, tol=1e-15)


def test_C_stands_for_lam_and_one_of_them_is_given() -> None:
    X, y = np.random.default_rng(0).normal(size=(60, 5)), np.arange(60) % 3
    by_C, by_lam = (solve(X, y, TopKHinge(1), **given) for given in ({"C": 2.0}, {"lam": 1.0 / 120.0}))
    assert by_C.primal == by_lam.primal
    for given in ({}, {"C": 1.0, "lam": 0.1}):
        with pytest.raises(InvalidProblemError, match="give one of them"):
            solve(X, y, TopKHinge(1), **given)


def test_a_loss_may_be_named_and_a_matrix_lie_by_columns() -> None:
    X, y = np.random.default_rng(0).normal(size=(60, 5)), np.arange(60) % 3
    by_columns, by_rows = csc_matrix(X), csr_matrix(X)
    assert solve(by_columns, y, "softmax", C=1.0).primal == solve(by_rows, y, Softmax(), C=1.0).primal
    with pytest.raises(InvalidProblemError, match="topk_hinge needs k"):
        solve(X, y, "topk_hinge", C=1.0)


ROWS, LABELS = examples(n=120, d=12, spread=1.5)
CS = list(np.logspace(-2.0, 1.0, 13))


def cold(C, loss, smoothing=0.0, method="dual_ascent", **options):
    return solve(ROWS, LABELS, loss, 1.0 / (len(LABELS) * C), smoothing, method, **options)


@pytest.mark.parametrize(
    ("loss", "smoothing", "method"),
    [
        (TopKHinge(2), 0.0, "dual_ascent"),
        pytest.param(TopKHinge(2), 0.5, "dual_ascent", marks=pytest.mark.slow),
        pytest.param(Softmax(), 0.0, "dual_ascent", marks=pytest.mark.slow),
        pytest.param(MaxHinge(), 0.5, "sdca", marks=pytest.mark.slow),
        (Softmax(), 0.0, "lbfgs"),
        pytest.param(TopKHinge(2), 0.5, "lbfgs", marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_every_point_is_solved_and_all_take_fewer_passes_than_from_zero(loss, smoothing, method) -> None:
    tol = 1e-3 if smoothing or loss == Softmax() else 1e-2
    options = {"tol": tol, "max_passes": 5000}
    path = regularisation_path(ROWS, LABELS, loss, CS, smoothing, method, **options)
    starts = [cold(C, loss, smoothing, method, **options) for C in CS]
    for C, point, start in zip(CS, path, starts, strict=True):
        lam = 1.0 / (len(LABELS) * C)
        assert point.problem.lam == lam
        assert point.status is Status.SOLVED
        assert point.relative_gap <= tol
        assert point.A is None
        assert point.primal == pytest.approx(
            reference.primal(ROWS, LABELS, loss, lam, smoothing, point.W), rel=1e-12
        )
        assert start.dual <= point.primal * (1 + 1e-12)
        assert point.dual <= start.primal * (1 + 1e-12)
    assert sum(point.passes for point in path) < 0.9 * sum(start.passes for start in starts)


def test_results_come_in_the_order_that_was_asked_for() -> None:
    path = regularisation_path(ROWS, LABELS, MaxHinge(), [1.0, 0.01, 0.1, 0.01], keep_duals=True)
    assert [1.0 / (len(LABELS) * point.problem.lam) for point in path] == pytest.approx(
        [1.0, 0.01, 0.1, 0.01]
    )
    assert path[1] is path[3]
    for point in path:
        D = reference.dual(ROWS, LABELS, MaxHinge(), point.problem.lam, 0.0, point.A)
        assert point.dual == pytest.approx(D, rel=1e-12)


def test_the_options_of_solve_reach_every_point() -> None:
    weights = np.random.default_rng(0).uniform(0.0, 2.0, len(LABELS))
    options = {
        "sample_weight": weights,
        "tol": 1e-6,
        "max_passes": 5000,
        "m": M + 1,
        "executor": SerialExecutor(blocks=2),
    }
    path = regularisation_path(
        ROWS, LABELS, TopKHinge(2), [0.1, 1.0], 0.5, smoothing_kind="others", **options
    )
    for C, point in zip([0.1, 1.0], path, strict=True):
        best = cold(C, TopKHinge(2), 0.5, smoothing_kind="others", **options)
        assert point.primal == pytest.approx(best.primal, rel=1e-5)
        assert point.W.shape == (ROWS.shape[1], M + 1)


def test_duals_alone_start_from_their_best_multiple() -> None:
    """With a hundred times the C all of A is worse than nothing; what is taken beats any multiple of it."""
    A = cold(0.1, MaxHinge(), tol=1e-6).A
    lam = 1.0 / (len(LABELS) * 10.0)
    first = cold(10.0, MaxHinge(), max_passes=1, duals=[(0, len(LABELS), A)]).history[0]
    values = [reference.dual(ROWS, LABELS, MaxHinge(), lam, 0.0, s * A) for s in np.linspace(0.0, 1.0, 1001)]
    assert values[-1] < 0.0 < max(values)
    assert first.dual == pytest.approx(max(values), rel=1e-3)
    same = cold(0.1, MaxHinge(), tol=1e-5, duals=[(0, len(LABELS), A)])
    assert same.passes == 2  # one for W(A), one that finds it solved


def test_a_run_that_left_its_duals_for_weights_starts_the_next() -> None:
    """Signals of few waves, few for their features: `auto` begins with dual ascent and leaves it."""
    waves = np.cos(np.outer(np.arange(30), np.linspace(0.0, np.pi, 430))) / np.arange(10, 310, 10)[:, None]
    rows, labels = np.random.default_rng(0).normal(size=(260, 30)) @ waves, np.arange(260) % 20
    path = regularisation_path(rows, labels, Softmax(), [10.0, 30.0], tol=1e-3)
    assert path[0].method.startswith("dual_ascent, ")
    for point in path:
        alone = solve(rows, labels, Softmax(), point.problem.lam, method="lbfgs", tol=1e-4)
        assert point.status is Status.SOLVED
        assert point.primal == pytest.approx(alone.primal, rel=1.1e-3)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"Cs": []}, InvalidProblemError, "there is no C"),
        ({"Cs": 1.0}, InvalidProblemError, "Cs is 1.0; give a sequence of positive numbers"),
        ({"y": 3}, InvalidProblemError, "the labels have the shape"),
        ({"Cs": [1.0, 0.0]}, InvalidProblemError, "C is 0.0; give a positive number"),
        ({"Cs": [np.nan]}, InvalidProblemError, "C is nan"),
        ({"method": "fw"}, UnsupportedCombinationError, "the method fw starts from no earlier solution"),
        ({"method": "oldton"}, InvalidProblemError, "no method named"),
    ],
)
def test_what_is_refused(changes, error, message) -> None:
    with pytest.raises(error, match=message):
        regularisation_path(**{"X": ROWS, "y": LABELS, "loss": MaxHinge(), "Cs": [1.0], **changes})


@pytest.mark.parametrize(
    ("loss", "options", "reached"),
    [
        (TopKHinge(2), {"keep_duals": True}, r"relative gap \d\.\de-\d\d, primal 0\.\d+, dual 0\.\d+"),
        (TopKHinge(2), {"kernel": RBFKernel(0.5)}, r"relative gap \d\.\de-\d\d, primal 0\.\d+, dual 0\.\d+"),
        (TruncatedTopKEntropy(2), {}, r"gradient at \d\.\de-\d\d of its first size, primal 0\.\d+"),
    ],
)
def test_a_result_is_printed_in_one_short_line(loss: Any, options: dict[str, Any], reached: str) -> None:
    X, y = examples(n=40)
    result = solve(X, y, loss, 1e-2, m=M, **options)
    printed = repr(result)
    name = type(result).__name__
    pattern = rf"{name}\(solved: {reached}; \d+ passes, \d+\.\d s, [^;]+; W \(\d+, {M}\)\)"
    assert re.fullmatch(pattern, printed.replace("\n", " | ")), printed
    assert len(printed) < 160
