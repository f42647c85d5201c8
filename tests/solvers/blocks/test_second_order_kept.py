"""What a block keeps between second-order requests: no more than its budget, and the sums do not change."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from topline import MaxHinge, SerialExecutor, Softmax, Status, TopKEntropy, TopKHinge, solve
from topline.solvers.blocks import most_kept
from topline.solvers.core.problem import Problem
from topline.solvers.methods import METHODS, method_memory
from topline.solvers.operations import FindEnvelopes, FindSlope, MultiplyCurvature, SumGrams

N, D, M = 3000, 20, 12
RNG = np.random.default_rng(0)
Y = RNG.integers(M, size=N)
X = (RNG.standard_normal((M, D))[Y] + RNG.standard_normal((N, D))).astype(np.float32)
W = 0.1 * RNG.standard_normal((D, M))
V = 0.1 * RNG.standard_normal((D, M))
#: Python objects that hold the arrays, and sums of the size of W.
OVERHEAD = 100_000


def array_bytes() -> int:
    """Give the bytes of NumPy's arrays since tracing began: compiling takes memory, too."""
    arrays = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)
    found = tracemalloc.take_snapshot().filter_traces([arrays])
    return sum(trace.size for trace in found.traces)


def sums_of(answer):
    """Give what an operation of second order sums."""
    return np.asarray(vars(answer).get("product", vars(answer).get("matrix", vars(answer).get("total"))))


def answers(loss, kept_bytes, blocks=2):
    """Give the sums of the requests of one round, the rows counted and the memory held after them."""
    problem = Problem(loss, N, D, M, 1.0 / N)
    executor = SerialExecutor(blocks=blocks, kept_bytes=kept_bytes, threads=1)
    executor.bind(problem, X, Y, keep_duals=True)
    point = FindEnvelopes(1, W, None, sigma=0.0 if problem.form.smooth else 1.0)
    requests = [
        point,
        MultiplyCurvature.at(point, V=V),
        SumGrams.at(point),
        MultiplyCurvature.at(point, V=W),
        FindSlope.at(point, V=V, step=1.0),
        FindSlope.at(point, V=V, step=0.5),
    ]
    for request in requests:  # compiles
        executor.run(request)
    executor.load_duals([(0, N, np.zeros((N, M)))])  # lets go of everything
    tracemalloc.start()
    found = [executor.run(request) for request in requests]
    held = array_bytes() - sum(sums_of(answer).nbytes for answer in found)
    tracemalloc.stop()
    return [sums_of(answer) for answer in found], [answer.visited for answer in found], held


@pytest.mark.parametrize("loss", [MaxHinge(), TopKHinge(3), Softmax(), TopKEntropy(2)], ids=lambda x: x.name)
def test_a_block_keeps_no_more_than_it_may_and_says_the_same(loss) -> None:
    most = most_kept(N, M, X.nbytes, smooth=loss.form(M).smooth)
    whole, seldom, unbounded = answers(loss, None)
    enough, visited, held = answers(loss, most)
    assert held <= most + OVERHEAD
    # The estimate is of every row being curved, and is enough to keep whatever is kept without a budget.
    assert abs(held - unbounded) < OVERHEAD
    assert visited == seldom
    # Scores, moves and u in float32 are most of it.
    assert held > 8 * N * M
    for kept_bytes in (most // 3, most // 20, 0):
        sums, often, held = answers(loss, kept_bytes)
        assert held <= kept_bytes + OVERHEAD
        for product, expected in zip([*enough, *sums], 2 * whole, strict=True):
            # Curvature follows from u as it was found, in float32, or from u found anew.
            assert np.abs(product - expected).max() <= 1e-6 * np.abs(expected).max()
    # Without room scores are products again in every request, and counted.
    assert often[0] == seldom[0] == N
    assert often[4] == seldom[4] + N == 2 * N
    assert seldom[5] == 0
    assert often[5] == 2 * N
    assert all(after >= before for after, before in zip(often, seldom, strict=True))


@pytest.mark.parametrize("loss", [MaxHinge(), Softmax()], ids=lambda x: x.name)
def test_the_certified_optimum_does_not_depend_on_the_budget(loss) -> None:
    found = []
    for kept_bytes in (None, 100_000, 0):
        with SerialExecutor(blocks=2, kept_bytes=kept_bytes) as executor:
            found.append(solve(X, Y, loss, lam=1.0 / N, method="newton", tol=1e-6, executor=executor))
    assert all(result.status is Status.SOLVED for result in found)
    # Each is within its own gap of the optimum.
    for result in found[1:]:
        assert result.primal == pytest.approx(found[0].primal, rel=2e-6)
        assert result.passes >= found[0].passes


@pytest.mark.parametrize("whole", [True, False])
def test_what_is_formed_is_counted(whole) -> None:
    """The largest matrix, its copies while a block sums it and the sums of two blocks that meet."""
    d, m = (100, 10) if whole else (200, 33)
    rng = np.random.default_rng(1)
    features = rng.standard_normal((400, d)).astype(np.float32)
    labels = rng.integers(m, size=400)
    problem = Problem(MaxHinge(), 400, d, m, 1.0 / 400)
    counted = 8 * method_memory(METHODS["newton"], problem, features.nbytes).formed
    executor = SerialExecutor(blocks=2, threads=1)
    executor.bind(problem, features, labels, keep_duals=True)
    point = FindEnvelopes(1, np.zeros((d, m)), None, sigma=1.0)
    executor.run(point)
    executor.run(SumGrams.at(point, whole=whole))  # compiles, which takes memory too
    tracemalloc.start()
    stats = executor.run(SumGrams.at(point, whole=whole))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert stats.matrix.nbytes == counted
    # Two blocks: that of the first, and of the second what it returns and a copy while it sums.
    assert peak <= 3.5 * counted


def test_other_methods_form_and_keep_nothing() -> None:
    problem = Problem(MaxHinge(), N, D, M, 1.0 / N)
    for name in ("dual_ascent", "fw", "lbfgs"):
        memory = method_memory(METHODS[name], problem, X.nbytes)
        assert (memory.formed, memory.kept) == (0, 0)
    assert method_memory(METHODS["lbfgs"], problem, X.nbytes).arrays > 20
    assert method_memory(METHODS["auto"], problem, X.nbytes).kept > 0
