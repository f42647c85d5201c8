"""What holds for every operation: the requests of whole runs, asked again where the rows lie differently.

Runs are recorded, request by request.  Asked again in the same order of other blocks, the requests have the
same answers, up to the order of their sums.  What a sweep of dual ascent finds depends on its block, so runs
that sweep are asked again with the same blocks only.
"""

from __future__ import annotations

import pickle
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import cache

import numpy as np
import pytest
from scipy import sparse

from tests.solvers.problems import M, examples, several_labels, solved_on_blocks
from topline import (
    AverageTopK,
    MaxHinge,
    MultilabelHinge,
    MultilabelSoftmax,
    PrecomputedKernel,
    RBFKernel,
    SerialExecutor,
    Softmax,
    ThreadExecutor,
    TopKHinge,
    UsunierHinge,
    solve,
)
from topline.solvers import operations
from topline.solvers.blocks.kernel import Mark
from topline.solvers.core.answers import Answer
from topline.solvers.losses import OneVsAll
from topline.solvers.methods import METHODS
from topline.solvers.operations import Operation, PutInside
from topline.solvers.operations import kernel as kernel_operations
from topline.solvers.operations.kernel import CollectRows, FindCrossValues, KernelOperation, UpdateRows
from topline.solvers.run import ProblemSpec

N = 75
X, Y = examples(n=N, d=6)
WEIGHTS = np.random.default_rng(5).choice([0.0, 0.5, 2.0], N)
#: Blocks of several sizes, two of them of one row.
CUTS = (0, 1, 17, 40, 41, N)
#: Estimates from some rows of every tile, so they depend on where tiles begin.
ESTIMATES = {"openness", "openness_sq"}
#: Rounding in the rows' gaps, of about 1e-16, is as large as its root in sums of the roots.
LOOSE = {"roots": 1e-4}


class Recorder(SerialExecutor):
    """Keeps every request and its answer as they travel between processes."""

    def __init__(self, bounds) -> None:
        super().__init__(bounds=bounds)
        self.log, self.bound = [], ()

    def bind(self, problem, X, y, **options) -> None:
        self.bound = problem, X, y, options
        super().bind(problem, X, y, **options)

    def run(self, request):
        sent, answer = pickle.dumps(request), super().run(request)
        # Methods go on computing in the arrays of an answer.
        self.log.append((sent, pickle.dumps(answer)))
        return answer


#: Products of a whole tile are too large for the way that those of a few rows are formed.
WIDE = examples(n=N, d=150, m=200)


def linear(method, loss, smoothing=0.0, rows=X, labels=Y, **options):
    given = {"tol": 1e-9, "max_passes": 12, "m": M, **options}
    return lambda executor: solve(rows, labels, loss, 0.02, smoothing, method, executor=executor, **given)


def labelled(loss, smoothing=0.0):
    """Frank-Wolfe on rows of several labels."""
    sets, codes = several_labels(Y)
    return linear("fw", loss, smoothing, labels=codes, label_sets=sets, m=None)


def kernel(method, loss, smoothing=0.0, given=None, **options):
    spec = ProblemSpec(loss, 0.02, smoothing=smoothing, method=method, kernel=given or RBFKernel(0.3))
    rows = X if given is None else X @ X.T
    return lambda executor: solved_on_blocks(spec, rows, Y, executor, tol=1e-9, max_passes=12, **options)


#: Methods whose answers are sums over rows.
BY_ROWS = [name for name in METHODS if name not in ("auto", "dual_ascent", "sdca", "lbfgs")]
SEVERAL = [MultilabelHinge(), MultilabelSoftmax(), OneVsAll("hinge"), OneVsAll("logistic")]
#: Runs whose answers do not depend on the blocks.
RUNS = {
    **{f"{method}, hinge": linear(method, TopKHinge(2)) for method in BY_ROWS},
    **{f"{method}, smoothed": linear(method, TopKHinge(2), 0.5) for method in BY_ROWS},
    **{f"{method}, softmax": linear(method, Softmax()) for method in ("fw", "newton", "lbfgs")},
    **{f"fw, {loss.name} of label sets": labelled(loss) for loss in SEVERAL},
    **{f"fw, smoothed {loss.name} of label sets": labelled(loss, 0.5) for loss in SEVERAL[::2]},
    "fw, smoothed, many classes": linear("fw", MaxHinge(), 0.1, *WIDE, m=200),
    "fw, softmax, many classes": linear("fw", Softmax(), 0.0, *WIDE, m=200),
    "fw, weighted": linear("fw", TopKHinge(2), 0.5, sample_weight=WEIGHTS),
    "newton, weighted": linear("newton", TopKHinge(2), sample_weight=WEIGHTS),
    **{
        f"fw, largest losses of {loss.name}": linear("fw", loss, risk=AverageTopK(20.5))
        for loss in (TopKHinge(3), UsunierHinge(2), Softmax())
    },
    "kernel ascent": kernel("dual_ascent", TopKHinge(2)),
    "kernel ascent, smoothed and weighted": kernel("dual_ascent", TopKHinge(2), 0.5, weights=WEIGHTS),
    "kernel ascent, precomputed": kernel("dual_ascent", MaxHinge(), given=PrecomputedKernel()),
    "kernel fw": kernel("fw", MaxHinge()),
    "kernel fw_away": kernel("fw_away", TopKHinge(2), 0.5),
    "kernel fw_pairwise": kernel("fw_pairwise", Softmax()),
}
SWEEPS = {
    "dual_ascent": linear("dual_ascent", TopKHinge(2)),
    "sdca, smoothed": linear("sdca", TopKHinge(2), 0.5),
    "auto, softmax": linear("auto", Softmax()),
}


@cache
def recorded(name, bounds):
    """Record a run on such blocks."""
    with Recorder(bounds) as executor:
        (RUNS | SWEEPS)[name](executor)
    return executor.log, executor.bound


def bound(executor, run, rows=lambda X: X):
    problem, X, y, options = run
    executor.bind(problem, rows(X), y, **options)
    return executor


def numbers(answer, name=""):
    """Give the numbers of an answer by name, but not its times."""
    if not is_dataclass(answer):
        yield name, answer.toarray() if sparse.issparse(answer) else answer
        return
    for part in fields(answer):
        if not part.name.startswith("seconds"):
            yield from numbers(getattr(answer, part.name), part.name)


def assert_close(found, expected, left_out=()) -> None:
    for (name, one), (_, other) in zip(numbers(found), numbers(expected), strict=True):
        if name in ESTIMATES or name in left_out or other is None:
            assert (one is None) == (other is None), name
        elif np.asarray(other).dtype.kind in "biu":
            np.testing.assert_array_equal(one, other, err_msg=name)
        else:
            scale = np.abs(other).max(initial=0.0)
            np.testing.assert_allclose(one, other, rtol=0.0, atol=LOOSE.get(name, 1e-8) * scale, err_msg=name)


@pytest.mark.parametrize("name", RUNS)
def test_answers_do_not_depend_on_the_blocks(name) -> None:
    log, run = recorded(name, (0, N))
    with SerialExecutor(bounds=CUTS) as executor:
        bound(executor, run)
        for sent, expected in log:
            assert_close(executor.run(pickle.loads(sent)), pickle.loads(expected))


@pytest.mark.parametrize("name", [name for name in RUNS if "precomputed" not in name])
def test_answers_do_not_depend_on_how_rows_are_stored(name) -> None:
    log, run = recorded(name, (0, N))
    with SerialExecutor(bounds=CUTS) as executor:
        bound(executor, run, sparse.csr_matrix)
        for sent, expected in log:
            # A loss of 0 may be one of 1e-16.
            assert_close(executor.run(pickle.loads(sent)), pickle.loads(expected), left_out={"active"})


@pytest.mark.parametrize("name", RUNS | SWEEPS)
def test_answers_on_threads_and_asked_twice_are_the_same_bits(name) -> None:
    log, run = recorded(name, CUTS)
    with ThreadExecutor(3, bounds=CUTS) as executor:
        bound(executor, run)
        for sent, expected in log:
            request, answer = pickle.loads(sent), dict(numbers(pickle.loads(expected)))
            np.testing.assert_equal(dict(numbers(executor.run(request))), answer)
            # A row put inside once more moves by rounding.
            if isinstance(request, PutInside):
                continue
            # What blocks keep is not computed again, nor counted.
            again = dict(numbers(executor.run(request)))
            np.testing.assert_equal(again | {"visited": 0}, answer | {"visited": 0})


#: Operations that multiply no rows, and those that have no work per row besides.
WITHOUT_PRODUCTS = {
    "PickRows", "CollectRows", "PutInside", "FindCrossValues", "FindKernelVertices",
    "MultiplyAtoms", "ReweighAtoms",
}  # fmt: skip
WITHOUT_ROW_WORK = {"SumMoments", "CollectRows", "PutInside", "FindCrossValues"}


@pytest.mark.parametrize("name", RUNS | SWEEPS)
def test_answers_have_the_seconds_of_what_was_done(name) -> None:
    for sent, answered in recorded(name, CUTS)[0]:
        kind, answer = type(pickle.loads(sent)).__name__, pickle.loads(answered)
        # A change of no rows takes neither.
        if kind != "SpreadChange":
            assert (answer.seconds_products > 0.0) == (kind not in WITHOUT_PRODUCTS), kind
            assert (answer.seconds_kernels > 0.0) == (kind not in WITHOUT_ROW_WORK), kind


@pytest.mark.parametrize("name", [name for name in RUNS if name.startswith("kernel")])
def test_scores_of_other_dual_variables_are_told(name) -> None:
    """By operations that read or change scores, but not by those that begin anew or bring their rows."""
    log, run = recorded(name, CUTS)
    for request in {type(each): each for each in (pickle.loads(sent) for sent, _ in log)}.values():
        if not isinstance(request, KernelOperation):
            continue
        needs_none = isinstance(request, FindCrossValues | UpdateRows) or getattr(request, "anew", False)
        needs_none |= isinstance(request, CollectRows) and not request.vertices
        with SerialExecutor(bounds=CUTS) as executor:
            bound(executor, run)
            stale = executor.run(replace(request, mark=Mark(9, 9))).stale
        assert stale == (0 if needs_none else N), type(request)


def test_the_runs_have_every_operation() -> None:
    """But those of several heads, which `tests/solvers/run/test_shared.py` compares with runs alone."""
    every = {
        thing.__name__
        for room in (operations, kernel_operations)
        for thing in vars(room).values()
        if isinstance(thing, type) and issubclass(thing, Operation) and not thing.__abstractmethods__
    }
    seen = {
        type(pickle.loads(sent)).__name__ for name in RUNS | SWEEPS for sent, _ in recorded(name, CUTS)[0]
    }
    assert every - seen == {"AskHeads", "CopyDuals", "CountHits"}


def kinds(kind=Answer):
    """Give the answers that a block without a part in the work may give."""
    for found in kind.__subclasses__():
        if all(part.default is not MISSING for part in fields(found)):
            yield found
        yield from kinds(found)


@pytest.mark.parametrize("kind", [*kinds()], ids=lambda kind: kind.__name__)
def test_a_block_without_a_part_in_the_work_changes_no_sum(kind) -> None:
    for name, number in numbers(kind().merge(kind())):
        assert number is None or number == 0, name
