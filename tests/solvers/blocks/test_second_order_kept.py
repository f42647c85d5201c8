"""What a block sums and keeps: right whatever the rows, and no more than its budget."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from scipy import sparse

from tests.solvers.problems import examples, solved_on_blocks
from topline import MaxHinge, RBFKernel, SerialExecutor, Softmax, Status, TopKEntropy, TopKHinge, solve
from topline.solvers.blocks import kernel, most_kept
from topline.solvers.blocks.ascent import dual_changes
from topline.solvers.blocks.ascent.dual_changes import add_changes
from topline.solvers.blocks.kernel import KeptColumns
from topline.solvers.blocks.second_order import add_weighted_grams
from topline.solvers.core.problem import Problem
from topline.solvers.crew import Crew
from topline.solvers.methods import METHODS, method_memory
from topline.solvers.operations import FindEnvelopes, FindSlope, MultiplyCurvature, SumGrams
from topline.solvers.run import ProblemSpec

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


@pytest.mark.parametrize(
    ("count", "d", "share"), [(3, 20, 1.0), (40, 20, 1.0), (40, 20, 0.2), (13, 130, 1.0)]
)
@pytest.mark.parametrize("kind", [np.float32, np.float64, "csr"])
def test_they_are_added(count, d, share, kind) -> None:
    random = np.random.default_rng(0)
    X = random.standard_normal((300, d)).astype(np.float32 if kind == "csr" else kind)
    weights = random.random((300, count)) * (random.random((300, count)) < share)
    grams = random.standard_normal((count, d, d))
    expected = grams + np.einsum("iq,ij,ik->qjk", weights, X.astype(np.float64), X.astype(np.float64))
    add_weighted_grams(grams, sparse.csr_matrix(X) if kind == "csr" else X, weights)
    np.testing.assert_allclose(grams, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("count", "d", "dtype"), [(400, 24, np.float32), (13, 200, np.float64)])
def test_they_take_at_most_one_more_array(count, d, dtype) -> None:
    """The memory plan counts one copy of what blocks sum."""
    X, weights = np.ones((50, d), dtype), np.ones((50, count))
    grams = np.zeros((count, d, d))
    add_weighted_grams(grams, X, weights)
    tracemalloc.start()
    add_weighted_grams(grams, X, weights)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert taken <= grams.nbytes


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("rows", "m", "share"), [(0, 3, 1.0), (1, 2, 1.0), (203, 7, 0.3), (500, 40, 0.05)])
def test_it_is_the_product_whatever_the_threads_and_tiles(monkeypatch, dtype, rows, m, share) -> None:
    random = np.random.default_rng(rows)
    X = random.standard_normal((2 * rows + 1, 33)).astype(dtype)
    places = random.permutation(len(X))[:rows]
    changes = random.standard_normal((rows, m)) * (random.random((rows, m)) < share)
    factors = random.random(rows)
    start = random.standard_normal((m, 33))
    expected = start + (changes * factors[:, None]).T @ X[places].astype(np.float64)
    found = []
    for tile_bytes, shared in ((1 << 23, 1 << 60), (1 << 23, 0), (4096, 0), (4096, 1 << 60)):
        monkeypatch.setattr(dual_changes, "_TILE_BYTES", tile_bytes)
        monkeypatch.setattr(dual_changes, "_SHARED", shared)
        for threads in (1, 3):
            out = start.copy()
            add_changes(X, places, changes.astype(dtype), factors, out, Crew(threads))
            # Rounding of changes to `dtype`, and of the order of some hundred additions.
            assert np.allclose(out, expected, rtol=0.0, atol=1e-11 if dtype is np.float64 else 1e-5)
            found.append((tile_bytes, out))
    for tile_bytes, out in found:
        assert all(np.array_equal(out, other) for size, other in found if size == tile_bytes)


def test_long_rows_that_change_whole_are_not_gathered_first() -> None:
    """A product of tiles takes a copy of its rows where they do not lie in turn."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 100_000), dtype=np.float32)
    places = rng.permutation(len(X))
    changes = rng.standard_normal((len(X), 3), dtype=np.float32)
    out = np.zeros((3, X.shape[1]))
    add_changes(X, places, changes, np.ones(len(X)), out)
    np.testing.assert_allclose(out, changes.T @ X[places], rtol=1e-4, atol=1e-3)
    tracemalloc.start()
    try:
        add_changes(X, places, changes, np.ones(len(X)), out)
        assert tracemalloc.get_traced_memory()[1] < X.nbytes / 4
    finally:
        tracemalloc.stop()


ROWS, LABELS = examples(n=240, spread=2.0)
ROWS = ROWS.astype(np.float32)


def test_columns_that_come_first_stay_and_the_others_find_no_room() -> None:
    # Two columns of 3 rows, beside the list of where 5 columns are.
    columns = KeptColumns(3, 5, 8 * 5 + 4 * 3 * 2)
    first = columns.places(np.array([1, 4, 3]))
    assert not first.known.any()
    assert first.slots.tolist() == [0, 1, -1]
    values = np.arange(9, dtype=np.float32).reshape(3, 3)
    first.write(np.arange(3), 0, values)
    # Not known before every row of the block was written.
    assert not columns.places(np.array([1])).known.any()
    columns.keep(np.array([1, 4, 3]), first)
    again = columns.places(np.array([0, 3, 4]))
    assert again.known.tolist() == [False, False, True]
    assert again.slots.tolist() == [-1, -1, 1]
    np.testing.assert_array_equal(again.read(np.array([2]), 1, 3), values[1:, 1][None])


@pytest.mark.parametrize("kept_bytes", [0, 8 * 240 * 2 - 1, 8 * 240 * 2])
def test_no_budget_is_no_column(kept_bytes) -> None:
    assert (KeptColumns(120, 240, kept_bytes // 2).places(np.arange(5)).slots == -1).all()


def test_blocks_share_what_nobody_has_limited(monkeypatch) -> None:
    n, most = 600, 200_000
    monkeypatch.setattr(kernel, "_KEPT_BYTES", most)
    blocks = [KeptColumns(rows, n, None) for rows in (300, 200, 100)]
    kept = [int((one.places(np.arange(n)).slots >= 0).sum()) for one in blocks]
    taken = sum(4 * rows * count for rows, count in zip((300, 200, 100), kept, strict=True))
    assert min(kept) > 0
    assert most - 3 * (8 * n + 4 * 300) <= taken + 3 * 8 * n <= most


class CountingKernel:
    """An RBF kernel that counts the values of float32 tiles."""

    def __init__(self) -> None:
        self._kernel, self.values = RBFKernel(0.3), 0
        self.name, self.matrix = self._kernel.name, self._kernel.matrix

    def tile(self, rows, others):
        """Return the values."""
        self.values += len(rows) * len(others)
        return self._kernel.tile(rows, others)


def solved(kept_bytes, method):
    kernel = CountingKernel()
    spec = ProblemSpec(MaxHinge(), C=4.0, method=method, kernel=kernel)
    with SerialExecutor(blocks=3, kept_bytes=kept_bytes) as executor:
        result = solved_on_blocks(spec, ROWS, LABELS, executor, tol=3e-2)
    return result, kernel.values


@pytest.mark.parametrize("method", ["dual_ascent", "fw", "fw_fully_corrective"])
def test_any_budget_gives_the_same_optimum_and_room_saves_values(method) -> None:
    """The last digit of a value depends on the tile it is computed in, and with it which vertex is best."""
    whole = 4 * len(LABELS) ** 2 + 3 * 8 * len(LABELS)
    runs = [solved(kept_bytes, method) for kept_bytes in (0, whole // 3, whole)]
    for result, _ in runs:
        assert result.status is Status.SOLVED
        assert result.dual <= min(other.primal for other, _ in runs)
    values = [count for _, count in runs]
    assert values[0] > values[1] > values[2]
