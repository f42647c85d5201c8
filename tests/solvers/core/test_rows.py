"""How features are read: tiles at fixed row numbers, whole chunks and slabs, any source with row slices."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from tests.reference import losses as reference
from tests.reference.training_qp import optimum
from tests.solvers.problems import examples
from topline import MaxHinge, RBFKernel, SerialExecutor, Softmax, Status, TopKHinge, UsunierHinge, solve
from topline.solvers.core import rows
from topline.solvers.core.answers import iterate_tiles
from topline.solvers.core.deflation import Deflation
from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import (
    RowRange,
    compute_dtype,
    nonfinite_rows,
    slab_bounds,
    tile_rows,
)
from topline.solvers.methods.dual_ascent import DualAscent


class Chunked:
    """A source stored in chunks that counts what is decoded."""

    def __init__(self, values, chunk):
        self._values = values
        self.shape, self.dtype = values.shape, values.dtype
        self.chunks = (chunk, values.shape[1])
        self.decoded = 0

    def __getitem__(self, rows):
        start, stop, _ = rows.indices(self.shape[0])
        self.decoded += (stop - 1) // self.chunks[0] - start // self.chunks[0] + 1
        return self._values[rows]


def test_tiles_end_at_multiples_of_their_size_whatever_the_block() -> None:
    X = np.arange(40.0)[:, None]
    edges = [(13 + start, 13 + stop) for start, stop, _ in iterate_tiles(RowRange(X, 13, 35), 13, 8)]
    assert edges == [(13, 16), (16, 24), (24, 32), (32, 35)]
    read = np.concatenate([rows for _, _, rows in iterate_tiles(RowRange(X, 13, 35), 13, 8)])
    np.testing.assert_array_equal(read, X[13:35])


@pytest.mark.parametrize("chunk", [8, 12, 64, 100])
def test_chunks_are_decoded_about_once(chunk) -> None:
    values = np.random.default_rng(0).standard_normal((300, 5))
    source = Chunked(values, chunk)
    tiles = list(iterate_tiles(source, 0, 16))
    np.testing.assert_array_equal(np.concatenate([rows for _, _, rows in tiles]), values)
    assert len(tiles) == -(-300 // 16)
    assert source.decoded == -(-300 // chunk)


#: Ways in which the rows of an array may be given.
ROW_FORMATS = {
    "chunks": lambda X: Chunked(X, 20),
    "range": lambda X: RowRange(np.concatenate([X[:7], X]), 7, 7 + len(X)),
    "columns": np.asfortranarray,
}


@pytest.mark.parametrize("given", ROW_FORMATS.values(), ids=ROW_FORMATS)
def test_every_row_format_gives_the_answer_of_the_array(given) -> None:
    X, y = examples(n=90)
    options = {"method": "fw", "max_passes": 5, "executor": SerialExecutor(bounds=[0, 30, 90])}
    np.testing.assert_array_equal(
        solve(given(X), y, MaxHinge(), 0.1, **options).W, solve(X, y, MaxHinge(), 0.1, **options).W
    )


def test_a_memory_map_is_read_in_place(tmp_path) -> None:
    X, y = examples(n=50)
    stored = np.memmap(tmp_path / "X", dtype=np.float32, mode="w+", shape=X.shape)
    stored[:] = X
    result = solve(stored, y, MaxHinge(), 0.1, method="fw", max_passes=5)
    np.testing.assert_array_equal(
        result.W, solve(X.astype(np.float32), y, MaxHinge(), 0.1, method="fw", max_passes=5).W
    )


@pytest.mark.parametrize(
    ("stored", "computed"),
    [("f2", "f4"), ("f4", "f4"), ("f8", "f8"), ("u1", "f4"), ("i2", "f4"), ("i4", "f8"), ("?", "f4")],
)
def test_products_are_exact_enough_for_what_is_stored(stored, computed) -> None:
    assert compute_dtype(np.dtype(stored)) == np.dtype(computed)


def test_tiles_fit_the_cache_or_have_rows_enough() -> None:
    assert tile_rows(300, 20, 4) == 1024
    assert tile_rows(4096, 1000, 4) == 512
    assert tile_rows(10**6, 100, 8) == 64
    assert tile_rows(1, 2, 4) == 4096


def test_bad_rows_are_found_in_every_form() -> None:
    X = np.ones((6, 3))
    X[2, 1], X[5, 0] = np.nan, np.inf
    np.testing.assert_array_equal(nonfinite_rows(X), [2, 5])
    np.testing.assert_array_equal(nonfinite_rows(sparse.csr_matrix(X)), [2, 5])
    assert nonfinite_rows(np.full((4, 4), 1e308)).size == 0


def with_repeats(X, seed=3):
    """Return a CSR matrix of the same numbers, each entry the sum of two that are stored in any order."""
    random = np.random.default_rng(seed)
    rows, columns = X.nonzero()
    parts = random.standard_normal(len(rows))
    order = random.permutation(2 * len(rows))
    order = order[np.argsort(np.tile(rows, 2)[order], kind="stable")]
    stored = np.concatenate([parts, X[rows, columns] - parts])[order], np.tile(columns, 2)[order]
    ends = np.concatenate([[0], np.cumsum(2 * np.count_nonzero(X, axis=1))])
    repeated = sparse.csr_array((*stored, ends), shape=X.shape)
    np.testing.assert_allclose(repeated.toarray(), X, atol=1e-14)
    assert repeated.nnz == 2 * np.count_nonzero(X)
    return repeated


@pytest.mark.parametrize("kernel", [None, "rbf"])
def test_entries_that_are_stored_in_several_parts_count_as_their_sum(kernel) -> None:
    X, y = examples(n=40)
    X[np.abs(X) < 0.5] = 0.0
    repeated = with_repeats(X)
    options = {"method": "sdca", "tol": 1e-6, "max_passes": 10, "kernel": kernel}
    parts = solve(repeated, y, MaxHinge(), 0.1, **options)
    whole = solve(sparse.csr_array(X), y, MaxHinge(), 0.1, **options)
    assert (parts.primal, parts.dual) == pytest.approx((whole.primal, whole.dual), rel=1e-9)
    assert repeated.nnz == 2 * np.count_nonzero(X), "what was given stays as it was"


@pytest.mark.parametrize("gamma", [None, "median"])
def test_a_kernel_finds_its_gamma_in_sums_of_parts(gamma) -> None:
    X, _ = examples(n=40)
    assert RBFKernel(gamma).resolved(with_repeats(X)).gamma == pytest.approx(
        RBFKernel(gamma).resolved(X).gamma
    )


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csr_array])
@pytest.mark.parametrize("repeated", [False, True])
def test_a_range_of_a_matrix_shares_its_entries(kind, repeated) -> None:
    random = np.random.default_rng(0)
    dense = np.where(random.random((50, 8)) < 0.3, random.normal(size=(50, 8)), 0.0)
    X = kind(dense)
    if repeated:
        X = kind((X.data, X.indices // 2, X.indptr), shape=X.shape)
    inner, whole = RowRange(RowRange(X, 10, 40), 5, 25), X.toarray()
    for picked, start, stop in ((slice(3, 9), 18, 24), (slice(0, 20), 15, 35), (slice(4, 4), 19, 19)):
        part = inner[picked]
        assert isinstance(part, kind)
        np.testing.assert_array_equal(part.toarray(), X[start:stop].toarray())
        assert bool(np.shares_memory(part.data, X.data)) == (not repeated and stop > start)
        part.sum_duplicates()
        np.testing.assert_array_equal(X.toarray(), whole)
    assert RowRange(X, 0, 50)[0:50] is X


class Pieces:
    """Rows stored in pieces of different sizes, of 8 bytes a row."""

    dtype = np.dtype(np.float64)
    shape = (100, 1)
    cuts = (0, 10, 35, 40, 80, 100)

    def __getitem__(self, rows: slice) -> np.ndarray:
        return np.arange(100.0)[rows, None]


def test_whole_pieces_are_read_together_while_they_fit(monkeypatch) -> None:
    monkeypatch.setattr(rows, "_SLAB_BYTES", 8 * 40)
    assert list(slab_bounds(Pieces(), 4)) == [(0, 40), (40, 80), (80, 100)]
    monkeypatch.setattr(rows, "_SLAB_BYTES", 8)
    assert list(slab_bounds(Pieces(), 4)) == [(0, 10), (10, 35), (35, 40), (40, 80), (80, 100)]
    monkeypatch.setattr(rows, "_SLAB_BYTES", 8 * 1000)
    assert list(slab_bounds(Pieces(), 4)) == [(0, 100)]
    assert list(slab_bounds(Pieces(), 4, 40)) == [(0, 40), (40, 80), (80, 100)]


def test_a_range_tells_the_pieces_in_its_own_row_numbers(monkeypatch) -> None:
    monkeypatch.setattr(rows, "_SLAB_BYTES", 8)
    assert list(slab_bounds(RowRange(Pieces(), 20, 85), 4)) == [(0, 15), (15, 20), (20, 60), (60, 65)]


def test_without_pieces_rows_are_cut_by_size(monkeypatch) -> None:
    monkeypatch.setattr(rows, "_SLAB_BYTES", 8 * 32)
    bounds = list(slab_bounds(np.zeros((100, 1)), 8))
    assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
    assert bounds[-1][1] == 100


def one_signed(n=600, d=24, m=6, seed=3):
    """Rectified clouds of unit norm: their mean holds most of their length."""
    random = np.random.default_rng(seed)
    y = random.integers(0, m, n)
    X = np.maximum(0.5 * random.standard_normal((m, d))[y] + random.standard_normal((n, d)), 0.0)
    return X / np.linalg.norm(X, axis=1, keepdims=True), y


@pytest.mark.parametrize("loss", [TopKHinge(2), UsunierHinge(2), Softmax()], ids=lambda loss: loss.name)
@pytest.mark.parametrize("blocks", [2, 5])
@pytest.mark.sampled(3)
def test_the_answer_is_that_of_the_problem_and_the_dual_never_falls(loss, blocks) -> None:
    X, y = one_signed(n=150, d=8, m=4)
    lam = 0.02
    with SerialExecutor(blocks=blocks) as executor:
        result = solve(X, y, loss, lam, tol=1e-7, max_passes=5000, method="dual_ascent", executor=executor)
    assert result.state.memory.deflation.direction is not None
    assert result.status is Status.SOLVED
    assert result.dual == pytest.approx(reference.dual(X, y, loss, lam, 0.0, result.A), rel=1e-9)
    assert result.primal == pytest.approx(reference.primal(X, y, loss, lam, 0.0, result.W), rel=1e-9)
    duals = [record.dual for record in result.history]
    assert (np.diff(duals) >= -1e-12 * max(duals)).all()


def test_the_optimum_lies_between_the_bounds() -> None:
    X, y = one_signed(n=40, d=4, m=4)
    executor = SerialExecutor(blocks=3)
    result = solve(
        X, y, TopKHinge(2), 0.02, tol=1e-4, max_passes=5000, method="dual_ascent", executor=executor
    )
    assert result.state.memory.deflation.direction is not None
    best = optimum(X, y, TopKHinge(2), 0.02, 0.0, 4)
    assert result.dual - 1e-7 <= best <= result.primal + 1e-7


@pytest.mark.parametrize("rectify", [True, False])
def test_rows_that_are_long_or_centred_do_not_stall(rectify) -> None:
    """Counts for one seed: long rows make their mean direction stiff, centred ones have none to speak of."""
    random = np.random.default_rng(1)
    y = random.integers(0, 20, 300)
    X = 0.3 * random.standard_normal((20, 200))[y] + random.standard_normal((300, 200))
    X = np.maximum(X, 0.0) if rectify else X
    executor = SerialExecutor(blocks=4)
    result = solve(X, y, TopKHinge(5), 1.0 / len(y), max_passes=5000, method="dual_ascent", executor=executor)
    assert result.status is Status.SOLVED
    assert (result.state.memory.deflation.direction is not None) == rectify
    assert len(result.history) < 100


def test_many_blocks_take_fewer_passes(monkeypatch) -> None:
    """Counts for one seed: 20 blocks that answer to the same mean overshoot without it, where C is large."""
    X, y = one_signed(n=200)

    def solved(max_passes):
        return solve(
            X, y, TopKHinge(2), 0.1 / len(y), max_passes=max_passes, method="dual_ascent",
            executor=SerialExecutor(blocks=20),
        )  # fmt: skip

    apart = solved(5000)
    assert apart.status is Status.SOLVED
    monkeypatch.setattr(DualAscent, "deflates", False)
    assert solved(int(1.25 * apart.passes)).status is Status.MAX_PASSES


def test_a_checkpoint_remembers_it() -> None:
    X, y = one_signed(n=200)
    lam, states = 1.0 / 200, []
    with SerialExecutor(blocks=3) as executor:

        def keep(record, state):
            A = np.concatenate([rows.copy() for _, _, rows in executor.duals(state.pending_step)])
            states.append((state, A))

        whole = solve(
            X, y, TopKHinge(2), lam, tol=1e-6, method="dual_ascent", executor=executor, callbacks=[keep]
        )
    state, A = states[2]
    again = solve(
        X,
        y,
        TopKHinge(2),
        lam,
        tol=1e-6,
        method="dual_ascent",
        state=state.with_point(pending_step=None),
        duals=[(0, 200, A)],
        executor=SerialExecutor(blocks=3),
    )
    assert again.passes == whole.passes
    np.testing.assert_allclose(again.W, whole.W, rtol=1e-12, atol=1e-14)


def test_sparse_and_centred_features_have_none() -> None:
    X, y = one_signed(n=200)
    result = solve(
        sparse.csr_matrix(X), y, TopKHinge(2), 1e-2, method="dual_ascent", executor=SerialExecutor(blocks=3)
    )
    assert result.state.memory.deflation.direction is None
    problem = Problem(loss=TopKHinge(2), n=4, d=3, m=4, lam=1.0)
    assert Deflation.of(problem, np.zeros((3, 1)), 1.0, 1).direction is None
