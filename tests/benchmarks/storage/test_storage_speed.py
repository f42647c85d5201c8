"""The benchmark of the storage runs; what it measures is read by people."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.storage.storage_speed import compare, measure


def test_the_benchmark_runs(tmp_path: Path) -> None:
    speeds = list(measure(str(tmp_path / "store"), rows=600, d=16, repeats=1))
    assert [speed.dtype for speed in speeds] == 2 * ["float32", "float16"]
    assert all(min(speed.write, speed.read, speed.read_tiles) > 0 for speed in speeds)


def test_zarr_reads_and_writes_the_same_array(tmp_path: Path) -> None:
    rows = list(compare(str(tmp_path / "store"), rows=600, d=16, repeats=1))
    assert {row.work for row in rows} == {"write units", "read units", "read blocks of 512 rows"}
    assert all(min(row.ours, row.theirs) > 0 for row in rows)
