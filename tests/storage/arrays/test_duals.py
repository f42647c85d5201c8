"""Dual variables in parts: any cut over any writers reads back the same, sparse where that is smaller."""

from __future__ import annotations

import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from topline.storage.arrays import DualWriter, StoredDuals
from topline.storage.arrays import duals as duals_module
from topline.storage.arrays.duals import encode, parts_in_order
from topline.storage.errors import FormatError
from topline.storage.stores import FileEntry, FileSet, Store

N, M = 103, 7


def duals(dtype: Any = np.float32, share: float = 0.2, n: int = N, m: int = M) -> NDArray[Any]:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((n, m)) * (rng.random((n, m)) < share)
    A[::9] = 0.0  # rows without an entry
    return A.astype(dtype)


def stored(store: Store, entries: list[FileEntry]) -> StoredDuals:
    return StoredDuals(FileSet(store, "here", entries, "the test"))


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_rows_of_any_cut_come_back(
    local_store: Store, monkeypatch: pytest.MonkeyPatch, dtype: Any, share: float
) -> None:
    monkeypatch.setattr(duals_module, "PART_BYTES", 10 * M * np.dtype(dtype).itemsize)
    A = duals(dtype, share)
    writer = pickle.loads(pickle.dumps(DualWriter(local_store, "here")))
    entries = writer.write([(40, 43, A[40:43]), (43, 44, A[43:44]), (60, N, A[60:])])
    entries += writer.write([(0, 40, A[:40]), (44, 60, A[44:60])])
    found = pickle.loads(pickle.dumps(stored(local_store, entries)))
    assert found.n_rows == N
    for start, stop in [(0, N), (0, 1), (39, 41), (9, 10), (5, 77), (102, N)]:
        rows = found.rows(start, stop)
        assert rows.dtype == dtype
        np.testing.assert_array_equal(rows, A[start:stop])
        rows[:] = np.nan  # nothing that is read again
        pieces = list(found.between(start, stop))
        assert [start, *[last for _, last, _ in pieces]] == [*[first for first, _, _ in pieces], stop]
        assert max(last - first for first, last, _ in pieces) <= 10
    np.testing.assert_array_equal(np.concatenate([rows for _, _, rows in found]), A)
    with pytest.raises(FormatError, match="not within the 103 rows"):
        found.rows(0, N + 1)


def _write(writer: DualWriter, start: int, rows: NDArray[Any]) -> list[FileEntry]:
    return writer.write([(start, start + len(rows), rows)])


def test_many_processes_write_one_whole(local_store: Store) -> None:
    A, writer = duals(), DualWriter(local_store, "here")
    cuts = list(range(0, N, 20))
    with ProcessPoolExecutor(3, mp_context=get_context("forkserver")) as pool:
        futures = [pool.submit(_write, writer, cut, A[cut : cut + 20]) for cut in reversed(cuts)]
        entries = [entry for future in futures for entry in future.result()]
    np.testing.assert_array_equal(stored(local_store, entries).rows(0, N), A)


def test_short_runs_share_a_part_and_types_do_not(local_store: Store) -> None:
    A = duals()
    runs = [(low, low + 1, A[low : low + 1]) for low in range(N)]
    entries = DualWriter(local_store, "here").write(runs)
    assert [entry.rows for entry in entries] == [(0, N)]
    wider = [(0, 50, A[:50]), (50, N, A[50:].astype(np.float64))]
    entries = DualWriter(local_store, "here").write(wider)
    np.testing.assert_array_equal(stored(local_store, entries).rows(0, N), A)


def test_a_few_entries_a_row_take_a_few_bytes() -> None:
    """Ten of a thousand classes: 6 bytes an entry, and not 4 bytes a class."""
    A = duals(np.float32, 0.01, 2000, 1000)
    assert len(encode(A)) < 7 * np.count_nonzero(A) + 4 * len(A)
    wide = np.zeros((2, 70_000), np.float32)
    wide[1, 69_999] = 1.5
    assert b'"<u4"' in encode(wide)


@pytest.mark.parametrize("bounds", [[(1, 5)], [(0, 5), (6, 9)], [(0, 5), (4, 9)], [(0, 5), (0, 5)]])
def test_each_row_is_there_once(bounds: list[tuple[int, int]]) -> None:
    entries = [FileEntry(f"duals/{i}", 1, "", rows) for i, rows in enumerate(bounds)]
    with pytest.raises(FormatError, match="do not follow row"):
        parts_in_order(entries)
    with pytest.raises(FormatError, match=r"rows 3\.\.6 \(3 given\) do not follow row 5"):
        list(duals_module._parts([(0, 5, duals()[:5]), (3, 6, duals()[3:6])]))
