"""The order of a version's rows: what has not changed keeps its unit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from topline.pipeline.images import ImageItem, ImageListing
from topline.pipeline.ingest.earlier import RowOrder, row_order
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import Dataset, DatasetWriter
from topline.storage.stores import open_store

UNIT = 8


def item(name: str, size: int = 1) -> ImageItem:
    return ImageItem(name, name, name, size=size)


def listing(names: Sequence[str]) -> ImageListing:
    return ImageListing(Path("/photos"), "folder", tuple(item(name, len(name)) for name in names))


def stored(order: RowOrder, key: str) -> Dataset:
    """The dataset of these rows, each with one feature: a number that its name alone decides."""
    store = open_store(f"memory://{key.partition(' ')[0]}", create=True)
    names = [own.sample_id for own in order.listing.items]
    writer = DatasetWriter.begin(store, key, 1, "float32", order.plan, {}, cuts=order.cuts)
    for unit in range(writer.units):
        own = names[order.cuts[unit] : order.cuts[unit + 1]]
        X = np.array([[float(sum(name.encode()))] for name in own], np.float32)
        sizes = pa.array([len(name) for name in own], pa.int64())
        writer.write_unit(unit, X, pa.table({"sample_id": own, "path": own, "size": sizes}))
    return Dataset(store, writer.commit(np.zeros(len(names), int), np.zeros(len(names), int), ("c",)))


def plan(names: Sequence[str]) -> ChunkPlan:
    return ChunkPlan(len(names), UNIT, UNIT)


def test_one_image_a_version_leaves_few_units_and_writes_each_row_seldom() -> None:
    names = [f"c/{number:03d}" for number in range(20)]
    base = stored(row_order(listing(names), plan(names), None), "growing 0")
    written = 0
    for number in range(20, 20 + 24):
        before = {unit.features for unit in base.units}
        names.append(f"c/{number:03d}")
        base = stored(row_order(listing(names[::-1]), plan(names), base), f"growing {number}")
        assert base.sample_ids()[: len(names) - 1 - UNIT] == names[: len(names) - 1 - UNIT]
        written += sum(unit.rows[1] - unit.rows[0] for unit in base.units if unit.features not in before)
    assert sorted(base.sample_ids()) == names
    assert len(base.units) <= len(names) / UNIT + np.log2(UNIT) + 1
    # A row is written again when its unit doubles: once, and three times until a unit of 8 is full.
    assert written <= 24 * (1 + np.log2(UNIT))


def test_what_is_gone_is_left_out_and_a_renamed_class_keeps_its_places() -> None:
    names = [f"{'ab'[number % 2]}/{number:03d}" for number in range(24)]
    base = stored(row_order(listing(names), plan(names), None), "renamed 0")
    gone = [name for name in names if name != "b/011"]
    order = row_order(listing(gone), plan(gone), base)
    assert order.cuts == (0, 8, 15, 23)
    assert [own.sample_id for own in order.listing.items] == gone
    renamed = [name.replace("a/", "z/") for name in names]
    after = stored(row_order(listing(sorted(renamed)), plan(renamed), base), "renamed 1")
    assert after.sample_ids() == renamed
    kept = row_order(listing(sorted(renamed)), plan(renamed), base)
    assert (kept.cuts, kept.base) == ((0, 8, 16, 24), base.info.id)


@pytest.mark.parametrize("count", [24 + 25, 24 * 8])
def test_many_new_rows_or_much_larger_units_are_ordered_anew(count: int) -> None:
    names = [f"c/{number:03d}" for number in range(24)]
    base = stored(row_order(listing(names), plan(names), None), f"anew{count} 0")
    more = [f"c/{number:03d}" for number in range(count)]
    wanted = plan(more) if count < 100 else ChunkPlan(len(more), UNIT, 4 * UNIT)
    order = row_order(listing(more), wanted, base)
    assert (order.base, order.cuts, order.plan) == (None, tuple(wanted.unit_bounds()), wanted)
