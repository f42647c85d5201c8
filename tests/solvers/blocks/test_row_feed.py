"""The order in which rows of a block are visited where their dual rows are opened slab by slab."""

from __future__ import annotations

import numpy as np

from tests.benchmarks.scale.gap_curve import features
from topline import SerialExecutor, TopKHinge, solve
from topline.solvers.blocks.row_feed import RowFeed
from topline.solvers.core import rows


def test_rows_that_lie_in_memory_are_drawn_from_many_places(monkeypatch) -> None:
    n = 40_000
    monkeypatch.setattr(rows, "_SLAB_BYTES", 4 * 8 * n // 2)
    feed = RowFeed(np.ones((n, 8), dtype=np.float32), np.dtype(np.float32), opened=3)
    portions = list(feed.shuffled(np.arange(n), np.random.default_rng(0)))
    visited = np.concatenate([portion.rows for portion in portions])
    assert np.array_equal(np.sort(visited), np.arange(n))
    assert max(len(portion.rows) for portion in portions) <= n // 512


def test_packed_dual_variables_cost_few_passes_where_rows_share_a_direction(monkeypatch) -> None:
    """Two halves, one visited after the other, took three times as many."""
    X, y = features(6_000, 128, 30)
    monkeypatch.setattr(rows, "_SLAB_BYTES", X.nbytes // 2)
    passes = []
    for dual_bytes in (None, 100_000):
        with SerialExecutor(dual_bytes=dual_bytes) as executor:
            result = solve(X, y, TopKHinge(5), 1 / len(y), executor=executor, method="dual_ascent")
        passes.append(result.passes)
    assert passes[1] <= 1.5 * passes[0]
