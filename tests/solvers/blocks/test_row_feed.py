"""The order in which rows of a block are visited where their dual rows are opened slab by slab."""

from __future__ import annotations

import numpy as np

from tests.benchmarks.scale.gap_curve import features
from topline import SerialExecutor, Status, TopKHinge, solve
from topline.solvers.blocks.ascent import rows as ascent_rows
from topline.solvers.blocks.ascent.rows import RowFeed
from topline.solvers.core import rows


def test_slabs_are_visited_in_turns_with_others_in_every_sweep(monkeypatch) -> None:
    n, window = 12 * 512, 512
    monkeypatch.setattr(ascent_rows, "_PART_ROWS", 64)
    monkeypatch.setattr(ascent_rows, "_OPENED_BYTES", 2 * window * 4 * 3)
    feed = RowFeed(np.ones((n, 8), dtype=np.float32), np.dtype(np.float32), opened=3)
    random, together = np.random.default_rng(0), []
    for _ in range(2):
        portions = list(feed.shuffled(np.arange(n), random))
        assert np.array_equal(np.sort(np.concatenate([portion.rows for portion in portions])), np.arange(n))
        assert all(np.array_equal(portion.places + portion.slab[0], portion.rows) for portion in portions)
        assert {len(portion.rows) for portion in portions} == {window // 8}
        # A slab that is done is replaced; the first and the last ones have fewer beside them.
        turns = [{portion.slab for portion in portions[i : i + 5]} for i in range(6, len(portions) - 14)]
        assert all(len(turn) in (3, 4) for turn in turns)
        together.append({frozenset(turn) for turn in turns})
    assert together[0] != together[1]


def test_the_next_slab_is_asked_for_after_parts_of_the_others(monkeypatch) -> None:
    """So that there is time to read it: three at once would come one after the other."""
    n, window = 12 * 512, 512
    monkeypatch.setattr(ascent_rows, "_PART_ROWS", 64)
    monkeypatch.setattr(ascent_rows, "_OPENED_BYTES", 2 * window * 4 * 3)
    asked: list[int] = []
    visited = 0

    def told(*given):
        for slab in read_slabs(*given):
            asked.append(visited)
            yield slab

    read_slabs = ascent_rows.read_slabs
    monkeypatch.setattr(ascent_rows, "read_slabs", told)
    feed = RowFeed(np.ones((n, 8), dtype=np.float32), np.dtype(np.float32), opened=3)
    for _ in feed.shuffled(np.arange(n), np.random.default_rng(0)):
        visited += 1
    assert (len(asked), asked[0], visited) == (12, 0, 12 * 8)
    assert min(np.diff(asked)) >= 2
    # Three at a time: the last one is asked for when the parts of nine have been visited.
    assert asked[-1] >= 9 * 8


def test_no_rows_are_no_portions() -> None:
    feed = RowFeed(np.ones((5, 8), dtype=np.float32), np.dtype(np.float32), opened=3)
    assert not list(feed.shuffled(np.arange(0), np.random.default_rng(0)))


def test_blocks_without_rows_that_count_are_swept() -> None:
    X, y = features(60, 128, 20)
    weights = np.repeat([1.0, 0.0], 30)
    with SerialExecutor(blocks=2, dual_bytes=100) as executor:
        packed = solve(X, y, TopKHinge(3), 0.1, executor=executor, sample_weight=weights, m=20)
    whole = solve(X, y, TopKHinge(3), 0.1, sample_weight=weights, m=20)
    assert packed.status is whole.status is Status.SOLVED
    assert abs(packed.primal - whole.primal) <= 2e-3 * whole.primal


def test_packed_dual_variables_cost_few_passes_where_rows_share_a_direction(monkeypatch) -> None:
    """Slabs that were visited one after the other took three times as many."""
    X, y = features(6_000, 128, 30)
    monkeypatch.setattr(ascent_rows, "_OPENED_BYTES", 2 * 2_048 * 4 * 30)
    monkeypatch.setattr(ascent_rows, "_PART_ROWS", 256)
    passes = []
    for dual_bytes in (None, 100_000):
        with SerialExecutor(dual_bytes=dual_bytes) as executor:
            result = solve(X, y, TopKHinge(5), 1 / len(y), executor=executor, method="dual_ascent")
        passes.append(result.passes)
    assert passes[1] <= 1.5 * passes[0]


def test_rows_that_are_read_cost_few_passes_as_well(monkeypatch, tmp_path) -> None:
    X, y = features(6_000, 128, 30)
    np.save(tmp_path / "X.npy", X)
    monkeypatch.setattr(rows, "_SLAB_BYTES", X.nbytes // 4)
    monkeypatch.setattr(ascent_rows, "_HELD_BYTES", 0)
    monkeypatch.setattr(ascent_rows, "_PART_ROWS", 128)
    passes = [
        solve(source, y, TopKHinge(5), 1 / len(y), method="dual_ascent").passes
        for source in (X, np.load(tmp_path / "X.npy", mmap_mode="r"))
    ]
    assert passes[1] <= 1.5 * passes[0]
