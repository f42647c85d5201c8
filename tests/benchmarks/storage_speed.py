"""How fast features are written and read: python -m tests.benchmarks.storage_speed [FOLDER]."""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import Dataset, DatasetWriter
from topline.storage.stores import Store, open_store


@dataclass(frozen=True)
class Speed:
    """Megabytes (10^6 bytes, uncompressed) a second of features of one kind and type."""

    features: str
    dtype: str
    write: float
    read: float
    read_tiles: float
    packed_share: float


def measure(folder: str, rows: int = 16384, d: int = 1024, repeats: int = 3) -> Iterator[Speed]:
    """Write and read `rows` x `d` features in each stored type: half zeros, as after a ReLU, and noise."""
    store = open_store(folder, create=True)
    noise = np.random.default_rng(0).standard_normal((rows, d), dtype=np.float32)
    for features, dtype in itertools.product(("half zeros", "noise"), ("float32", "float16")):
        X = (noise if features == "noise" else np.maximum(noise, 0)).astype(dtype)
        plan = ChunkPlan.choose(rows, d, X.itemsize)
        write, dataset = written(store, f"{features} {dtype}", X, plan)
        read = fastest(partial(dataset.rows, 0, rows), repeats)
        tiles = fastest(partial(read_tiles, dataset), repeats)
        packed = sum(entry.size for entry in dataset.files.entries)
        megabytes = X.nbytes / 1e6
        speeds = (megabytes / seconds for seconds in (write, read, tiles))
        yield Speed(features, dtype, *speeds, packed / X.nbytes)


def written(store: Store, key: str, X: NDArray[Any], plan: ChunkPlan) -> tuple[float, Dataset]:
    """Seconds that it takes to write and commit X, and the dataset."""
    rows, d = X.shape
    writer = DatasetWriter.begin(store, key, rows, d, X.dtype, plan, {})
    parts = [pa.table({"sample_id": [str(row) for row in range(*cut)]}) for cut in cuts(plan)]
    started = time.perf_counter()
    for unit, (start, stop) in enumerate(cuts(plan)):
        writer.write_unit(unit, X[start:stop], parts[unit])
    info = writer.commit(np.zeros(rows, np.int32), np.zeros(rows, np.int8), ["only"])
    return time.perf_counter() - started, Dataset.open(store, info.id)


def read_tiles(dataset: Dataset, tile: int = 512) -> None:
    """Read all rows in runs that are no whole chunks."""
    rows = dataset.info.n_rows
    for row in range(0, rows, tile):
        dataset.rows(row, min(rows, row + tile))


def cuts(plan: ChunkPlan) -> list[tuple[int, int]]:
    """First row and the row after the last of each unit."""
    return [(plan.bounds(unit).start, plan.bounds(unit).stop) for unit in range(plan.units)]


def fastest(act: Callable[[], object], repeats: int) -> float:
    """Shortest of some timings, in seconds: the others were disturbed."""
    timings = []
    for _ in range(repeats):
        started = time.perf_counter()
        act()
        timings.append(time.perf_counter() - started)
    return min(timings)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as place:
        for speed in measure(place):
            print(
                f"{speed.features}, {speed.dtype}: write {speed.write:.0f} MB/s, read {speed.read:.0f} MB/s,"
                f" in tiles of 512 rows {speed.read_tiles:.0f} MB/s; {speed.packed_share:.2f} of the bytes"
            )
