"""What an earlier version gives to the next one: features of known images, splits, and the order of rows."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.pipeline.fresh_photos import photographs
from tests.storage.samples import unit_of
from tests.storage.test_integrity import flip_first
from topline.pipeline.images import ImageItem, ImageListing
from topline.pipeline.ingest import extract
from topline.pipeline.ingest.earlier import RowOrder, row_order
from topline.pipeline.ingest.splits import recorded_splits
from topline.pipeline.options.ingest import ExtractConfig
from topline.pipeline.options.train import ClusterConfig
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import Dataset, DatasetWriter
from topline.storage.stores import open_store

HERE = ClusterConfig(workers=0)


def version(photos: Path, store: Path, **options: str) -> Dataset:
    config = ExtractConfig(images=str(photos), store=str(store), backbone="hog:size=24,cells=8", **options)  # type: ignore[arg-type]
    return Dataset(open_store(store, create=True), extract(config, HERE, follow=True).info)


def splits(dataset: Dataset) -> dict[str, str]:
    rows = dataset.manifest().to_pylist()
    return {row["sha256"]: row["split"] for row in rows if row["status"] == "ok"}


def features(dataset: Dataset) -> dict[str, bytes]:
    X = np.asarray(dataset.rows(0, dataset.info.n_rows))
    return {row["path"]: X[i].tobytes() for i, row in enumerate(dataset.manifest().to_pylist())}


@pytest.mark.parametrize("damaged", [False, True])
def test_features_are_those_of_a_fresh_extraction(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, damaged: bool
) -> None:
    """Also where the earlier ones can no longer be read: then they are made again."""
    photographs(tmp_path / "photos", range(20))
    first = version(tmp_path / "photos", tmp_path / "store")
    if damaged:
        flip_first(first.store, f"{unit_of(first.store, first.info, 0)}/c/0/0")
    photographs(tmp_path / "photos", range(20, 24))
    second = version(tmp_path / "photos", tmp_path / "store")
    assert features(second) == features(version(tmp_path / "photos", tmp_path / "fresh"))
    assert splits(first).items() <= splits(second).items()
    assert ("described again" in caplog.text) == damaged


def test_what_came_back_is_held_out_as_before(tmp_path: Path) -> None:
    photos, store = tmp_path / "photos", tmp_path / "store"
    photographs(photos, range(20))
    first = splits(version(photos, store))
    shutil.move(photos / "c0", tmp_path / "away")
    version(photos, store)
    photographs(photos, range(20, 22))
    shutil.copytree(tmp_path / "away", photos / "c0", dirs_exist_ok=True)
    (photos / "c0" / "000.png").rename(photos / "c0" / "another name.png")
    assert first.items() <= splits(version(photos, store)).items()
    assert sorted(set(first.values())) == ["test", "train"]


def test_folders_deal_out_new_images_and_move_no_old_ones(tmp_path: Path) -> None:
    photos, store = tmp_path / "photos", tmp_path / "store"
    photographs(photos / "train", range(12))
    photographs(photos / "test", range(12, 16))
    first = version(photos, store)
    (photos / "test" / "c1" / "012.png").rename(photos / "train" / "c1" / "012.png")
    (photos / "train" / "c2" / "003.png").rename(photos / "test" / "c2" / "003.png")
    photographs(photos / "test", range(16, 17))
    second = version(photos, store)
    assert splits(first).items() <= splits(second).items()
    assert (first.info.counts["test"], second.info.counts["test"]) == (16, 20)
    assert recorded_splits(second.store, second.info.id) == splits(second)


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
