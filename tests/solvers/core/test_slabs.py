"""Which rows are read at once from sources that are stored in pieces."""

from __future__ import annotations

import numpy as np

from topline.solvers.core import rows
from topline.solvers.core.rows import RowRange, slab_bounds


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
