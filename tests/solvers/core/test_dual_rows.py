"""Dual rows in every form against one array: bitwise the same numbers, inside the budget."""

from __future__ import annotations

import errno
import gc
import os
import resource
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tests.contracts.executor_contract import BOUNDS, ExecutorContract
from tests.reference import losses as reference
from tests.solvers.problems import examples
from topline import MaxHinge, SerialExecutor, ThreadExecutor, TopKHinge, UnsupportedCombinationError, solve
from topline.solvers.core import dual_rows as dual_rows_module
from topline.solvers.core.dual_rows import ByteBudget, PackedStore, pack, row_runs, unpack
from topline.solvers.losses import OneVsAll, Softmax
from topline.solvers.operations import FindDirections

#: Nothing in memory, a part, and everything, though packed: A and the change, in float64, are just above it.
BUDGETS = (0, 6_000, 2 * 8 * BOUNDS[-1] * 5 - 1)
DESCRIPTORS = Path("/proc/self/fd")
FLOATS = (np.float32, np.float64)


def sparse_rows(random, rows, m, dtype):
    """Rows of every density, some of zeros alone, some without a zero."""
    density = random.uniform(-0.3, 1.3, (rows, 1))
    values = random.standard_normal((rows, m)).astype(dtype)
    return np.where(random.uniform(size=(rows, m)) < density, values, dtype(0.0))


def numpy_bytes(rows):
    """What `pack` is to give, without kernels; a mask where it sums counts."""
    mask = rows != 0.0
    places = np.concatenate([[0], mask.sum(axis=1).cumsum()]).astype(np.uint32)
    columns = np.nonzero(mask)[1].astype(np.uint16 if rows.shape[1] <= 65536 else np.uint32)
    packed = rows[mask].tobytes() + places.tobytes() + columns.tobytes()
    return (packed if len(packed) < rows.nbytes else rows.tobytes()) if mask.any() else b""


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("m", [2, 31, 65536, 65537])
def test_packed_bytes_are_those_of_numpy(m, dtype) -> None:
    random = np.random.default_rng(m)
    for density in (0.0, 0.001, 0.2, 1.0):
        rows = np.where(random.uniform(size=(7, m)) < density, random.standard_normal((7, m)), 0.0)
        rows = rows.astype(dtype)
        if density == 0.2:
            rows[0, m // 2], rows[3, -1] = np.nan, np.inf
        packed = pack(rows)
        assert packed.tobytes() == numpy_bytes(rows)
        out = np.full((4, m), 7.0, dtype=dtype)
        unpack(packed, 2, 7, out)
        np.testing.assert_array_equal(out, rows[2:6])


@pytest.mark.parametrize("budget", [0, 3_000, 1 << 20])
def test_any_run_of_calls_reads_what_an_array_reads(budget) -> None:
    random = np.random.default_rng(budget)
    cuts, m = [0, 3, 40, 41, 90, 128], 23
    for _ in range(6):
        array = np.zeros((cuts[-1], m), dtype=np.float32)
        shared = ByteBudget(budget)
        store, other = (PackedStore(cuts, m, array.dtype, shared) for _ in range(2))
        for _ in range(40):
            low, high = np.sort(random.choice(cuts[-1] + 1, 2, replace=False))
            match int(random.integers(0, 12)):
                case 0:
                    array[:] = 0.0
                    store.clear()
                case 1:
                    array = array.astype(np.float64)
                    store.widen()
                case 2:
                    other[low:high] = sparse_rows(random, high - low, m, np.float64)
                case _:
                    values = sparse_rows(random, high - low, m, array.dtype.type)
                    array[low:high] = values
                    store[low:high] = values
            assert store.dtype == array.dtype
            assert store.nbytes + other.nbytes <= budget
            assert (store.spilled > 0) <= (budget < 1 << 20)
            low, high = np.sort(random.choice(cuts[-1] + 1, 2, replace=False))
            np.testing.assert_array_equal(store[low:high], array[low:high])
        np.testing.assert_array_equal(store[0 : cuts[-1]], array)


def test_what_the_budget_gets_back_is_used_again() -> None:
    rows = np.ones((10, 4), dtype=np.float32)
    budget = ByteBudget(rows.nbytes)
    first, second = (PackedStore([0, 10], 4, rows.dtype, budget) for _ in range(2))
    first[0:10] = rows
    second[0:10] = rows
    assert (first.spilled, second.spilled) == (0, rows.nbytes)
    first.clear()
    second[0:10] = 2.0 * rows
    assert (second.nbytes, second.spilled) == (rows.nbytes, 0)


def test_the_file_has_no_name_and_is_closed_with_the_store(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rows = np.ones((10, 4), dtype=np.float32)

    def held() -> list[str]:
        """Descriptors of files in the folder; those of others may be closed at any time."""
        names = [str(one.readlink()) for one in DESCRIPTORS.iterdir() if os.path.lexists(one)]
        return [name for name in names if name.startswith(str(tmp_path))]

    store = PackedStore([0, 10], 4, rows.dtype, ByteBudget(0))
    store[0:10] = rows
    assert store.spilled == rows.nbytes
    assert len(held()) == 1
    assert list(tmp_path.iterdir()) == []
    del store
    gc.collect()
    assert held() == []


def test_a_full_disk_is_named(tmp_path, monkeypatch) -> None:
    """A limit on the size of files is the nearest to a full disk that a test may bring about."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = PackedStore([0, 100], 100, np.dtype(np.float64), ByteBudget(0))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, before[1]))
    try:
        with pytest.raises(OSError, match=str(tmp_path)) as caught:
            store[0:100] = np.ones((100, 100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.ENOSPC


def test_runs_of_rows_cover_a_block_and_are_no_burden() -> None:
    runs = list(row_runs(7, 100_000, 1000))
    assert [start for start, _ in runs] == [7, *[stop for _, stop in runs[:-1]]]
    assert runs[-1][1] == 100_000
    assert all(8 * 1000 * (stop - start) <= 64 << 20 for start, stop in runs)


class TestPackedExecutor(ExecutorContract):
    """Sums and duals bitwise those of arrays, whatever is in memory; duals come in runs of a few rows."""

    @pytest.fixture(params=BUDGETS)
    def executor(self, request, monkeypatch):
        monkeypatch.setattr(dual_rows_module, "_RUN_BYTES", 7 * 5 * 8)
        with SerialExecutor(bounds=BOUNDS, dual_bytes=request.param) as executor:
            yield executor


def run(budget, method, loss, smoothing, executor=SerialExecutor, *, tol=1e-7, max_passes=25):
    """Give a result with 7 classes, and A where it is kept."""
    X, y = examples(n=300, d=6, m=7)
    workers = (2,) if executor is ThreadExecutor else ()
    with executor(*workers, blocks=3, dual_bytes=budget) as held:
        result = solve(
            X.astype(np.float32), y, loss, 0.01, smoothing, method, tol=tol, max_passes=max_passes,
            executor=held, keep_duals=True,
        )  # fmt: skip
        A = np.concatenate([rows for _, _, rows in held.duals(result.state.pending_step)])
    assert (result.A is None) == (budget is not None)
    return result, A


@pytest.mark.parametrize("budget", [0, 9_000])
@pytest.mark.parametrize("executor", [SerialExecutor, ThreadExecutor])
@pytest.mark.parametrize(
    ("method", "loss", "smoothing"),
    [
        ("fw", TopKHinge(2), 0.0),
        ("fw", MaxHinge(), 0.3),
        ("fw", OneVsAll("logistic"), 0.0),
        ("projected_gradient", TopKHinge(2), 0.3),
        ("lbfgs", Softmax(), 0.0),
    ],
)
@pytest.mark.covering(2)
def test_a_run_with_packed_rows_is_bitwise_one_with_arrays(method, loss, smoothing, executor, budget) -> None:
    expected, A = run(None, method, loss, smoothing)
    result, packed = run(budget, method, loss, smoothing, executor)
    np.testing.assert_array_equal(result.W, expected.W)
    np.testing.assert_array_equal(packed, A)
    assert (result.primal, result.dual, result.passes) == (expected.primal, expected.dual, expected.passes)
    assert [r.dual for r in result.history] == [r.dual for r in expected.history]


@pytest.mark.parametrize("loss", [TopKHinge(2), Softmax()], ids=["sparse", "full"])
def test_dual_ascent_on_packed_rows_is_certified(loss) -> None:
    """Its order of rows is another than with arrays, yet the same whatever is in memory."""
    options = {"tol": 1e-3, "max_passes": 500}
    result, A = run(0, "dual_ascent", loss, 0.0, **options)
    other, same = run(9_000, "dual_ascent", loss, 0.0, **options)
    np.testing.assert_array_equal(other.W, result.W)
    np.testing.assert_array_equal(same, A)
    X, y = examples(n=300, d=6, m=7)
    X = X.astype(np.float32).astype(np.float64)
    dual, primal = reference.dual(X, y, loss, 0.01, 0.0, A), reference.primal(X, y, loss, 0.01, 0.0, result.W)
    assert (result.dual, result.primal) == pytest.approx((dual, primal), rel=1e-9)
    assert 0.0 <= primal - dual <= 1e-3 * primal


@pytest.mark.parametrize("method", ["fw_away_columns", "fw_pairwise_columns"])
def test_methods_on_arrays_refuse_packed_rows_by_name(method) -> None:
    run(33_600, method, TopKHinge(2), 0.0, max_passes=1)
    with pytest.raises(
        UnsupportedCombinationError, match=f"{method} works on .* 33600 bytes.* room for 33599"
    ):
        run(33_599, method, TopKHinge(2), 0.0)


def test_a_packed_block_refuses_an_order_that_needs_arrays() -> None:
    with SerialExecutor(dual_bytes=0) as executor:
        ExecutorContract().bound(executor)
        with pytest.raises(UnsupportedCombinationError, match="over the columns works on dual variables as"):
            executor.run(FindDirections(0, ExecutorContract().weights()))
