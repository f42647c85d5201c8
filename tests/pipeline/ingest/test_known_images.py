"""Versions that follow one another: what is known is not described again, and nothing leaves its split."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.pipeline.fresh_photos import photographs
from tests.storage.samples import unit_of
from tests.storage.test_integrity import flip_first
from topline.pipeline.ingest import extract
from topline.pipeline.ingest.splits import recorded_splits
from topline.pipeline.options.ingest import ExtractConfig
from topline.pipeline.options.train import ClusterConfig
from topline.storage.datasets import Dataset
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
