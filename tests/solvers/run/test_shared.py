"""Runs in shared passes are what they are alone, and searches find what exhaustive ones find."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import partial
from threading import Thread

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, top_k_accuracy_score
from sklearn.model_selection import StratifiedKFold

from tests.solvers.problems import Forgetful
from topline import MaxHinge, SerialExecutor, Softmax, TopKHinge, solve
from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import SharedScan
from topline.solvers.core.state import SolverState, Status, StoppingCriteria
from topline.solvers.methods import method_named
from topline.solvers.operations import CopyDuals, CountHits, Evaluate, Head, Rebuild
from topline.solvers.run import iterate
from topline.solvers.run import search as searching
from topline.solvers.run.search import Goal, Part, Search, Trial
from topline.solvers.run.shared import SharedPasses
from topline.solvers.run.task import risk_at_zero

N, D, M, FOLDS = 240, 6, 5, 3
CRITERIA = StoppingCriteria(tol=1e-2, max_passes=200)


class StoredRows:
    """Rows in pieces of 16 that have to be read."""

    def __init__(self, X):
        self._X, self.shape, self.dtype = X, X.shape, X.dtype
        self.cuts = list(range(0, len(X) + 1, 16))
        self.read = 0

    def __getitem__(self, rows):
        self.read += len(range(*rows.indices(len(self._X))))
        return self._X[rows]


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(0)
    y = (np.arange(N) % M).astype(np.int32)
    X = (random.standard_normal((M, D))[y] + random.standard_normal((N, D))).astype(np.float32)
    out = random.integers(0, FOLDS, N)
    weights = np.stack([(out != fold).astype(float) for fold in range(FOLDS)], axis=1)
    return X, y, weights


def run_of(head, C):
    return Head(head, Problem(TopKHinge(2), N, D, M, 1.0 / (N * C)), head % FOLDS)


def trained(run, at_zero=None):
    def train(executor):
        method = method_named("dual_ascent").method_for(run.problem, executor.blocks, 0)
        start = replace(SolverState.start(run.problem), primal_at_zero=at_zero)
        return iterate(run.problem, executor, method, CRITERIA, start)

    return train


@pytest.mark.sampled(4)
@pytest.mark.parametrize("at", [1, 2, 4, 6])
def test_a_lost_block_costs_the_runs_passes_and_no_digit(data, at) -> None:
    X, y, weights = data
    runs = [run_of(head, C) for head, C in enumerate((0.03, 0.1, 0.3))]
    with Forgetful(at, blocks=2) as executor:
        passes = SharedPasses(executor, runs[0].problem, X, y, weights)
        found = passes.run_all({run: trained(run) for run in runs})
        assert executor.requests > at
        assert passes.replaced == 1
    for run in runs:
        alone = solve(
            X, y, TopKHinge(2), run.problem.lam, method="dual_ascent", sample_weight=weights[:, run.column],
            tol=1e-6, max_passes=5000, executor=SerialExecutor(),
        )  # fmt: skip
        here = found[run.number]
        assert here.status is Status.SOLVED
        # P lies above the optimum and D below it, both within the gap.
        assert here.final.dual <= alone.primal * (1.0 + 1e-6)
        assert alone.dual * (1.0 - 1e-6) <= here.final.primal
        assert here.final.relative_gap <= CRITERIA.tol


@pytest.mark.parametrize("blocks", [1, 2])
def test_each_run_comes_to_the_numbers_that_it_comes_to_alone(data, blocks) -> None:
    X, y, weights = data
    runs = [run_of(head, C) for head, C in enumerate((0.1, 0.1, 0.1, 1.0, 1.0, 1.0))]
    with SerialExecutor(blocks=blocks, threads=2) as executor:
        passes = SharedPasses(executor, runs[0].problem, X, y, weights)
        at_zero = {run: risk_at_zero(run.problem, y, weights[:, run.column]) for run in runs}
        found = passes.run_all({run: trained(run, at_zero[run]) for run in runs})
    for run in runs:
        alone = solve(
            X, y, TopKHinge(2), run.problem.lam, method="dual_ascent", sample_weight=weights[:, run.column],
            tol=CRITERIA.tol, max_passes=CRITERIA.max_passes, executor=SerialExecutor(blocks=blocks),
        )  # fmt: skip
        here = found[run.number]
        assert (here.status, here.state.passes) == (alone.status, alone.passes)
        # A wide product rounds as its columns would alone, or in the last bits of float32.
        assert here.final.primal == pytest.approx(alone.primal, rel=1e-4)
        assert here.final.dual == pytest.approx(alone.dual, rel=1e-4)


def test_rows_that_do_not_lie_in_memory_are_read_once_for_all_runs(data) -> None:
    X, y, weights = data

    def rows_read(heads):
        rows = StoredRows(X)
        runs = [run_of(head, 0.1) for head in range(heads)]
        with SerialExecutor() as executor:
            passes = SharedPasses(executor, runs[0].problem, rows, y, weights)
            found = passes.run_all({run: trained(run) for run in runs})
        assert all(one.final.dual <= one.final.primal for one in found.values())
        return rows.read, sum(one.state.passes for one in found.values())

    (one, _), (six, six_passes) = rows_read(1), rows_read(6)
    assert six < 2 * one
    assert six < N * six_passes


def test_duals_are_copied_and_hits_counted_among_the_rows_held_out(data) -> None:
    X, y, weights = data
    first, second = run_of(0, 1.0), run_of(3, 1.0)
    with SerialExecutor(blocks=2) as executor:
        passes = SharedPasses(executor, first.problem, X, y, weights)
        W = passes.run_all({first: trained(first)})[0].final.W

        def copied(executor):
            executor.run(CopyDuals(source=0, share=0.5))
            return executor.run(Rebuild())

        def original(executor):
            sums = executor.run(Rebuild())
            return sums, executor.run(CountHits(W, k=2, radius=0.0)).count

        passes.run_all({second: copied})
        whole, hits = passes.run_all({first: original})[0]
        half = passes.run_all({second: lambda executor: executor.run(Rebuild())})[3]
    assert half.product == pytest.approx(0.5 * whole.product)
    out = weights[:, 0] == 0.0
    scores = X[out].astype(float) @ W
    own = scores[np.arange(out.sum()), y[out]][:, None]
    ahead = (scores >= own).sum(axis=1) - 1
    assert (hits.rows, hits.hits) == (out.sum(), (ahead < 2).sum())
    assert hits.low == hits.hits == hits.high


def test_what_one_run_raises_ends_all_of_them(data) -> None:
    X, y, weights = data
    first, second = run_of(0, 1.0), run_of(1, 1.0)

    def fails(executor):
        executor.run(Evaluate(np.zeros((D, M))))
        raise ValueError("no more")

    with SerialExecutor() as executor:
        passes = SharedPasses(executor, first.problem, X, y, weights)
        with pytest.raises(ValueError, match="no more"):
            passes.run_all({first: trained(first), second: fails})


def test_readers_that_want_different_slabs_share_those_that_several_want() -> None:
    rows = StoredRows(np.arange(96, dtype=np.float32)[:, None] * np.ones((1, 3), dtype=np.float32))
    scan = SharedScan(rows)
    slabs = [(start, start + 16) for start in range(0, 96, 16)]
    wanted = {0: slabs, 1: slabs[:3], 2: slabs[2:]}
    seen = {}

    def read(reader):
        taken = [
            (start, stop, part[:, 0].tolist()) for start, stop, part in scan.scan(wanted[reader], rows.dtype)
        ]
        seen[reader] = taken
        scan.leave()

    scan.begin(3)
    threads = [Thread(target=read, args=(reader,)) for reader in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for reader, slabs_wanted in wanted.items():
        assert sorted((start, stop) for start, stop, _ in seen[reader]) == slabs_wanted
        assert all(values == list(range(start, stop)) for start, stop, values in seen[reader])
    assert scan.slabs_read == len(slabs)
    assert rows.read == 96


def test_runs_take_overflow_as_their_caller_does(data) -> None:
    X, y, weights = data
    run = run_of(0, 0.1)
    with SerialExecutor() as executor, np.errstate(over="raise"):
        passes = SharedPasses(executor, run.problem, X, y, weights)
        assert passes.run_all({run: lambda _: np.geterr()["over"]}) == {0: "raise"}


# A dispatcher tells which signatures it has compiled or loaded for Python: no new one may appear in the run.
PROGRAM = """
import numba, numpy as np
import gc, sys
from scipy import sparse
from topline import SerialExecutor, TopKHinge, solve
from topline.solvers.jit_cache import Compiled
from topline.solvers.run import ProblemSpec, compile_jit_functions

def signatures():
    found = [o for o in gc.get_objects() if isinstance(o, Compiled)]
    named = [(f"{f.py_func.__module__}.{f.py_func.__qualname__}", list(f.signatures)) for f in found]
    return {name: signatures for name, signatures in named if "solvers" in name}

method, smoothing, is_sparse = sys.argv[1], float(sys.argv[2]), sys.argv[3] == "sparse"
packed, d = sys.argv[4] == "packed", int(sys.argv[5])
spec = ProblemSpec(TopKHinge(2), smoothing=smoothing, method=method)
compile_jit_functions(spec, d, 4, sparse=is_sparse)
before = signatures()
random = np.random.default_rng(0)
X = random.standard_normal((300, d)).astype(np.float32)
y = random.integers(0, 4, 300)
executor = SerialExecutor(dual_bytes=2_000 if packed else None)
X = sparse.csr_matrix(X) if is_sparse else X
solve(X, y, TopKHinge(2), 1e-2, smoothing, method, max_passes=5, executor=executor)
after = signatures()
print(sum(map(len, before.values())))
print({name: s for name, s in after.items() if s != before.get(name)})
"""


@pytest.mark.parametrize(
    ("method", "smoothing", "layout", "duals", "d"),
    [
        ("dual_ascent", 0.0, "dense", "arrays", 6),
        pytest.param("dual_ascent", 0.1, "sparse", "arrays", 6, marks=pytest.mark.slow),
        pytest.param("dual_ascent", 0.1, "dense", "packed", 2_000, marks=pytest.mark.slow),
        pytest.param("dual_ascent", 0.0, "dense", "arrays", 2_000, marks=pytest.mark.slow),
        pytest.param("dual_ascent", 0.0, "dense", "arrays", 80_000, marks=pytest.mark.slow),
        pytest.param("fw", 0.0, "dense", "arrays", 6, marks=pytest.mark.slow),
        pytest.param("fw", 0.1, "sparse", "packed", 6, marks=pytest.mark.slow),
    ],
)
def test_nothing_is_left_to_compile(method, smoothing, layout, duals, d) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, method, str(smoothing), layout, duals, str(d)],
        capture_output=True,
        text=True,
        check=True,
    )
    count, late = done.stdout.split("\n")[:2]
    assert int(count) >= 3
    assert late == "{}"


PIXELS, DIGITS = load_digits(return_X_y=True)
PIXELS, DIGITS = PIXELS[:600].astype(np.float32), DIGITS[:600]
HALVES = list(StratifiedKFold(5).split(PIXELS, DIGITS))
TRIALS = [Trial(scaling, loss) for loss in (Softmax(), MaxHinge()) for scaling in ("small", "plain")]


def part(scaling: str, fold: int) -> Part:
    """Pixels from 0 to 1, or so small that C = 1 hardly fits them."""
    train, test = HALVES[fold]
    X = PIXELS / np.float32(16.0 if scaling == "plain" else 4000.0)
    return Part(X[train], DIGITS[train], X[test], DIGITS[test])


def test_the_best_is_near_that_of_an_exhaustive_search() -> None:
    found = Search(part, TRIALS, 600, 10).find()
    assert found.ended == "all 5 folds were looked at"
    truth = max(
        np.mean([
            LogisticRegression(C=C, fit_intercept=False, max_iter=5000)
            .fit(part("plain", fold).X, part("plain", fold).y)
            .score(part("plain", fold).held_out, part("plain", fold).held_out_y)
            for fold in range(5)
        ])
        for C in (0.1, 1.0, 10.0)
    )  # fmt: skip
    # Two standard errors of a share of 600 rows.
    error = 2.0 * np.sqrt(truth * (1.0 - truth) / 600)
    assert found.share(found.best, Goal()) >= truth - error
    assert found.default.behind
    assert found.default is found.cells[0]
    assert (found.default.trial, found.default.C) == (TRIALS[0], 1.0)
    assert all(cell.relative_gap <= searching.GAP for cell in found.cells)


@pytest.mark.parametrize(("goal", "k"), [(Goal(), 1), (Goal(3), 3), (Goal(per_class=True), 1)])
def test_shares_are_those_of_scikit_learn(goal: Goal, k: int) -> None:
    found = Search(part, TRIALS[1:2], 600, 10, goal, folds=1, tol=1e-7).find()
    rows = part("plain", 0)
    peer = LogisticRegression(fit_intercept=False, tol=1e-9, max_iter=5000).fit(rows.X, rows.y)
    if goal.per_class:
        truth = balanced_accuracy_score(rows.held_out_y, peer.predict(rows.held_out))
    else:
        truth = top_k_accuracy_score(rows.held_out_y, peer.decision_function(rows.held_out), k=k)
    assert found.share(found.default, goal) == pytest.approx(truth, abs=1e-12)


def test_the_choice_follows_from_data_and_seed() -> None:
    first, again = (Search(part, TRIALS, 600, 10, seed=3).find() for _ in range(2))
    assert [(cell.trial, cell.C, cell.passes) for cell in first.cells] == [
        (cell.trial, cell.C, cell.passes) for cell in again.cells
    ]
    assert (first.best.trial, first.best.C) == (again.best.trial, again.best.C)


@pytest.mark.parametrize(("trials", "Cs"), [(TRIALS, ()), (TRIALS[:1], (1.0, 1.00001))])
def test_six_fits_are_the_most_where_these_take_long(trials, Cs, monkeypatch) -> None:
    """Also where two cells are left that no fold tells apart, and another fold of both is too much."""
    monkeypatch.setattr(searching, "LEAST", 1.0)
    monkeypatch.setattr(searching, "SECONDS", 0.0)
    found = Search(part, trials, 600, 10, Cs=Cs).find()
    assert found.fits <= searching.FITS
    assert found.ended == "the budget was spent"
    assert 600 * found.default.passes[0] * found.fits == pytest.approx(
        sum(len(HALVES[fold][0]) * passes for cell in found.cells for fold, passes in enumerate(cell.passes))
    )


@pytest.mark.parametrize("limit", [1e-9, None])
def test_a_time_that_is_up_leaves_the_default(limit: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a small problem as one that is given."""
    monkeypatch.setattr(searching, "SECONDS", 0.0)
    found = Search(part, TRIALS, 600, 10, time_limit=limit).find()
    assert found.best is found.default
    assert found.ended == "the time was up"


def test_given_values_of_C_are_the_only_ones() -> None:
    told: list[int] = []
    found = Search(part, TRIALS, 600, 10, C=0.5, Cs=(0.5,), told=partial(told.append, 1)).find()
    assert {cell.C for cell in found.cells} == {0.5}
    assert found.ended == "one was left"
    assert len(told) == sum(len(cell.passes) for cell in found.cells)


def test_few_rows_of_a_large_problem_are_searched_on() -> None:
    assert Search.rows(600, 64, 10) == 600
    assert Search.rows(10**6, 1281, 1000) == 250_000
