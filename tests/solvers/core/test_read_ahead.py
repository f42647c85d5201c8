"""Slabs come in order and before they are asked for, few at a time, and leave no thread behind."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from topline.solvers.core.answers import TileReader, iterate_tiles
from topline.solvers.core.rows import RowRange, cut_rows, read_slabs, widened
from topline.solvers.errors import NonFiniteError

FLOAT32 = np.dtype(np.float32)
SPANS = [(0, 4), (8, 12), (4, 8), (12, 15)]


class Source:
    """Rows that are read from somewhere: counts the arrays that it gave and that are still alive."""

    def __init__(self, values, broken_at=None):
        self._values, self._broken_at = values, broken_at
        self.shape, self.dtype = values.shape, values.dtype
        self.given = []
        self.most_alive = 0
        self.threads = set()

    def __getitem__(self, rows):
        start, stop, _ = rows.indices(self.shape[0])
        if self._broken_at is not None and start <= self._broken_at < stop:
            raise OSError("the disk is gone")
        values = self._values[start:stop].copy()
        self.threads.add(threading.current_thread())
        self.given.append(weakref.ref(values))
        self.most_alive = max(self.most_alive, sum(given() is not None for given in self.given))
        return values


@pytest.fixture
def values():
    return np.random.default_rng(0).standard_normal((15, 3)).astype(np.float16)


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("in_memory", [False, True])
def test_slabs_come_in_the_order_asked_for_and_ready_to_compute_with(values, in_memory) -> None:
    source = Source(values)
    came = list(read_slabs(values if in_memory else source, iter(SPANS), FLOAT32))
    assert [(start, stop) for start, stop, _ in came] == SPANS
    for start, stop, rows in came:
        assert rows.dtype == np.float32
        np.testing.assert_array_equal(rows, values[start:stop].astype(np.float64))
    assert threading.main_thread() not in source.threads
    assert list(read_slabs(source, [], FLOAT32)) == []


def test_the_next_slab_is_read_while_one_is_worked_on() -> None:
    source = Source(np.zeros((8, 2)))
    slabs = read_slabs(source, [(0, 4), (4, 8)])
    next(slabs)
    for thread in threading.enumerate():
        if thread.name == "topline-read-ahead":
            thread.join()
    assert len(source.given) == 2
    slabs.close()


def test_few_slabs_are_in_memory(monkeypatch) -> None:
    monkeypatch.setattr("topline.solvers.core.rows._SLAB_BYTES", 1)
    source = Source(np.zeros((100, 2)))
    for _ in read_slabs(source, cut_rows(100, 0, 5)):
        pass
    assert 1 < source.most_alive <= 3
    source = Source(np.zeros((100, 2)))
    source.cuts = list(range(0, 101, 5))
    assert sum(rows.sum() for _, _, rows in iterate_tiles(source, 3, 2)) == 0
    assert 1 < source.most_alive <= 3
    assert len(source.given) == 20


def test_what_a_read_raises_is_raised_where_its_slab_is_due(values) -> None:
    slabs = read_slabs(Source(values, broken_at=9), SPANS)
    assert next(slabs)[:2] == (0, 4)
    with pytest.raises(OSError, match="the disk is gone"):
        next(slabs)
    with pytest.raises(StopIteration):
        next(slabs)


@pytest.mark.parametrize("end", ["close", "forget", "raise", "cycle"])
def test_who_gives_up_leaves_no_thread(values, end) -> None:
    slabs = read_slabs(Source(values), SPANS)
    next(slabs)
    if end == "close":
        slabs.close()
    elif end == "forget":
        del slabs
    elif end == "cycle":
        cycle = [slabs]
        cycle.append(cycle)
        del slabs, cycle
        gc.collect()
    else:
        with pytest.raises(KeyError):
            slabs.throw(KeyError)


def test_a_cast_that_overflows_warns_as_it_would_without_a_thread() -> None:
    source = Source(np.full((4, 2), 1e300))
    with np.errstate(over="ignore"):
        assert all(np.isinf(rows).all() for _, _, rows in read_slabs(source, [(0, 2), (2, 4)], FLOAT32))
    with pytest.warns(RuntimeWarning, match="overflow"):
        next(read_slabs(source, [(0, 4)], FLOAT32))


@pytest.mark.parametrize("cuts", [None, [0, 7, 8, 30, 31, 60]])
def test_tiles_are_those_of_the_array_whatever_its_pieces(monkeypatch, cuts) -> None:
    monkeypatch.setattr("topline.solvers.core.rows._SLAB_BYTES", 3 * 4 * 10)
    values = np.random.default_rng(1).standard_normal((60, 3)).astype(np.float16)
    source = Source(values)
    if cuts:
        source.cuts = cuts
    expected = list(iterate_tiles(RowRange(values, 5, 58), 5, 8))
    came = list(iterate_tiles(RowRange(source, 5, 58), 5, 8))
    assert [tile[:2] for tile in came] == [tile[:2] for tile in expected]
    for (_, _, left), (_, _, right) in zip(came, expected, strict=True):
        np.testing.assert_array_equal(left, right)
    assert len(source.given) > 1


def test_a_block_that_fails_midway_leaves_no_thread(monkeypatch) -> None:
    monkeypatch.setattr("topline.solvers.core.rows._SLAB_BYTES", 1)
    monkeypatch.setattr("topline.solvers.core.answers.tile_rows", lambda d, m, itemsize: 8)
    values = np.zeros((60, 3), dtype=np.float32)
    values[33] = np.nan
    source = Source(values)
    source.cuts = list(range(0, 61, 10))
    tiles = TileReader(source, np.zeros(60, np.int32), np.ones(60), 0, 2)
    with pytest.raises(NonFiniteError, match="rows 33"):
        list(tiles.read(FLOAT32))
    assert 4 <= len(source.given) < 6


@pytest.mark.parametrize(
    ("low", "high"), [(0, 130), (70, 71), (64, 128), (129, 500), (-40, 3), (130, 140), (-9, 0)]
)
def test_some_rows_are_read_with_the_rest_of_their_tiles_alone(low: int, high: int) -> None:
    values = np.random.default_rng(0).standard_normal((130, 3)).astype(np.float32)
    source = Source(values)
    tiles = TileReader(source, np.arange(130, dtype=np.int32), np.ones(130), 7, 2)
    tiles.rows = 32
    tiles._unchecked = set(range(len(tiles)))
    whole = list(tiles.read(FLOAT32))
    source.given.clear()
    some = list(tiles.read(FLOAT32, low, high))
    wanted = [tile for tile in whole if tile.rows.start < high and low < tile.rows.stop]
    assert [(tile.number, tile.rows.start, tile.rows.stop) for tile in some] == [
        (tile.number, tile.rows.start, tile.rows.stop) for tile in wanted
    ]
    for tile in some:
        np.testing.assert_array_equal(tile.X, values[tile.rows])
        np.testing.assert_array_equal(tile.y, np.arange(tile.rows.start, tile.rows.stop))
    assert bool(source.given) == bool(wanted)


def test_every_half_is_the_same_number_in_single_precision() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    np.testing.assert_array_equal(widened(halves), halves.astype(np.float64))
    assert np.array_equal(np.signbit(widened(halves)), np.signbit(halves))
    np.testing.assert_array_equal(
        widened(halves.reshape(256, 256)[::2, ::3]), widened(halves).reshape(256, 256)[::2, ::3]
    )
