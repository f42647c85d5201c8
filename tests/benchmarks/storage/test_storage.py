"""Benchmarks of stores run at a small size; what they measure is read by people."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.benchmarks.storage import object_drivers, storage_speed, store_growth


@pytest.mark.benchmarks
def test_the_driver_of_topline_survives_a_fork_and_reads_the_files_of_aws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    found = object_drivers.measure(object_drivers.installed(), puts=3, patience=240.0)["s3fs"]
    assert found.after_fork
    assert found.with_files
    assert found.put > 0.0


def test_storage_speed_runs(tmp_path: Path) -> None:
    speeds = list(storage_speed.measure(str(tmp_path / "store"), rows=600, d=16, repeats=1))
    assert [speed.dtype for speed in speeds] == 2 * ["float32", "float16"]
    assert all(min(speed.write, speed.read, speed.read_tiles) > 0 for speed in speeds)


def test_zarr_reads_and_writes_the_same_array(tmp_path: Path) -> None:
    rows = list(storage_speed.compare(str(tmp_path / "store"), rows=600, d=16, repeats=1))
    assert {row.work for row in rows} == {"write units", "read units", "read blocks of 512 rows"}
    assert all(min(row.ours, row.theirs) > 0 for row in rows)


@pytest.mark.benchmarks
def test_versions_of_one_image_each(tmp_path: Path) -> None:
    growth = store_growth.grow(tmp_path, images=400, versions=4)
    assert growth.versions == 5
    # Each version has records of its own, some 15 kB, which are much beside 400 images.
    assert growth.ratio < 1.2
