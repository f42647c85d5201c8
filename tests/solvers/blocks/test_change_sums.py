"""The sum of x_i change_i^T, class by class and on threads, against one product in float64."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from topline.solvers.blocks.ascent import dual_changes
from topline.solvers.blocks.ascent.dual_changes import add_changes


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
            add_changes(X, places, changes.astype(dtype), factors, out, threads)
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
