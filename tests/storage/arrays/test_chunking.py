"""The chunk plan: integers only, so everything is checked against row numbers written out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topline.storage.arrays import ChunkPlan, Span
from topline.storage.errors import FormatError


@st.composite
def plans(draw: st.DrawFn) -> ChunkPlan:
    chunk = draw(st.integers(1, 20))
    return ChunkPlan(draw(st.integers(0, 300)), chunk, chunk * draw(st.integers(1, 6)))


def test_a_plan_written_out() -> None:
    plan = ChunkPlan(n_rows=10, chunk_rows=2, shard_rows=4)
    assert plan.units == 3
    assert plan.chunks_per_shard == 2
    assert [plan.bounds(unit) for unit in range(3)] == [Span(0, 4), Span(4, 8), Span(8, 10)]
    assert plan.unit_bounds() == [0, 4, 8, 10]
    assert list(plan.overlapping(3, 9)) == [(0, Span(3, 4)), (1, Span(4, 8)), (2, Span(8, 9))]
    assert list(plan.overlapping(5, 5)) == []
    assert str(plan.bounds(1)) == "rows 4-7"


@given(plans())
def test_units_partition_the_rows(plan: ChunkPlan) -> None:
    rows = [
        row for unit in range(plan.units) for row in range(plan.bounds(unit).start, plan.bounds(unit).stop)
    ]
    assert rows == list(range(plan.n_rows))
    assert all(0 < plan.bounds(unit).rows <= plan.shard_rows for unit in range(plan.units))
    assert all(plan.bounds(unit).start % plan.chunk_rows == 0 for unit in range(plan.units))
    cuts = plan.unit_bounds()
    assert len(cuts) == plan.units + 1
    assert all(Span(cuts[unit], cuts[unit + 1]) == plan.bounds(unit) for unit in range(plan.units))


@given(plans(), st.data())
def test_overlapping_units_hold_the_rows_asked_for(plan: ChunkPlan, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, plan.n_rows))
    stop = data.draw(st.integers(start, plan.n_rows))
    pieces = list(plan.overlapping(start, stop))
    assert [row for _, span in pieces for row in range(span.start, span.stop)] == list(range(start, stop))
    bounds = [(plan.bounds(unit), span) for unit, span in pieces]
    assert all(whole.start <= span.start < span.stop <= whole.stop for whole, span in bounds)


@given(
    st.integers(0, 10**7),
    st.integers(0, 10**6),
    st.sampled_from([2, 4, 8]),
    st.none() | st.integers(1, 10**5),
)
def test_a_chosen_plan_keeps_to_its_sizes(n: int, d: int, itemsize: int, largest: int | None) -> None:
    plan = ChunkPlan.choose(n, d, itemsize, largest)
    row_bytes = max(1, d * itemsize)
    assert plan.n_rows == n
    assert plan.chunk_rows * row_bytes <= max(1 << 20, row_bytes), "a chunk is at most 1 MiB, or one row"
    assert plan.shard_rows * row_bytes <= max(16 << 20, row_bytes), "a shard is at most 16 MiB, or one row"
    assert plan.shard_rows < max(1, n) + plan.chunk_rows, "a shard has no chunk without rows"
    if largest is not None:
        assert plan.shard_rows <= largest


@pytest.mark.parametrize("wrong", [(10, 3, 4), (10, 0, 4), (10, 4, 0), (-1, 1, 1), (10, 4, 2)])
def test_plans_that_cut_nothing_are_refused(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(FormatError):
        ChunkPlan(*wrong)


def test_rows_and_units_that_are_not_there() -> None:
    plan = ChunkPlan(10, 2, 4)
    for act in (
        lambda: plan.bounds(3),
        lambda: plan.bounds(-1),
    ):
        with pytest.raises(FormatError):
            act()
    for start, stop in ((-1, 3), (3, 2), (0, 11)):
        with pytest.raises(FormatError, match="not within the 10 rows"):
            list(plan.overlapping(start, stop))
    with pytest.raises(FormatError, match="at least one row"):
        ChunkPlan.choose(10, 2, 4, 0)
