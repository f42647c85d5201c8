"""How fast features are written and read: python -m tests.benchmarks.storage.storage_speed [FOLDER].

The last lines compare with zarr-python on the same array, once with its own codec pipeline and, where the
package zarrs is installed, once with that: the same chunks, shards and codecs, timings interleaved.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pyarrow as pa
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec, ZstdCodec

from topline.storage.arrays import ChunkPlan
from topline.storage.arrays.groups import ArraySpec, packed_metadata, packed_shard
from topline.storage.datasets import Dataset, DatasetWriter
from topline.storage.stores import Store, open_store
from topline.storage.stores.files import put_files


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
        packed = sum(entry.size for unit in range(plan.units) for entry in dataset.unit_files(unit).entries)
        megabytes = X.nbytes / 1e6
        speeds = (megabytes / seconds for seconds in (write, read, tiles))
        yield Speed(features, dtype, *speeds, packed / X.nbytes)


def written(store: Store, key: str, X: NDArray[Any], plan: ChunkPlan) -> tuple[float, Dataset]:
    """Seconds that it takes to write and commit X, and the dataset."""
    rows, d = X.shape
    writer = DatasetWriter.begin(store, key, d, X.dtype, plan, {})
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


@dataclass(frozen=True)
class Comparison:
    """Medians in seconds, and of processor time, of one piece of work done by us and by `other`."""

    work: str
    other: str
    ours: float
    theirs: float
    ours_cpu: float
    theirs_cpu: float


def compare(folder: str, rows: int = 16384, d: int = 2048, repeats: int = 5) -> Iterator[Comparison]:
    """Write and read float16 features (rows, d), half of them zeros, with our arrays and with zarr-python."""
    store = open_store(folder, create=True)
    X = np.maximum(np.random.default_rng(0).standard_normal((rows, d), dtype=np.float32), 0).astype("f2")
    plan = ChunkPlan.choose(rows, d, X.itemsize)
    _, dataset = written(store, "ours", X, plan)
    units = cuts(plan)
    spec = ArraySpec(plan, (d,), X.dtype)
    # The same shards as one array, which a dataset has as an array a unit.
    put_files(store, "one", [packed_metadata("x", spec)])
    put_files(store, "one", (packed_shard("x", spec, u, X[a:b]) for u, (a, b) in enumerate(units)))
    place = str(store.local_path / "one/x")  # type: ignore[operator]
    pipelines = {"zarr": "zarr.core.codec_pipeline.BatchedCodecPipeline"}
    if find_spec("zarrs") is not None:
        pipelines["zarr with zarrs"] = "zarrs.ZarrsCodecPipeline"
    for other, pipeline in pipelines.items():
        zarr.config.set({"codec_pipeline.path": pipeline})
        reader = zarr.open_array(place, mode="r")
        writer = zarr.create_array(
            f"{folder}/{other}.zarr", shape=X.shape, dtype=X.dtype, fill_value=np.nan, overwrite=True,
            chunks=(plan.chunk_rows, d), shards=(plan.shard_rows, d),
            compressors=[ZstdCodec(level=1), Crc32cCodec()],
        )  # fmt: skip
        works: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "write units": (
                lambda: put_files(
                    store, "again", (packed_shard("x", spec, u, X[a:b]) for u, (a, b) in enumerate(units))
                ),
                lambda writer=writer: [writer.__setitem__(slice(a, b), X[a:b]) for a, b in units],
            ),
            "read units": (
                lambda: [dataset.rows(a, b) for a, b in units],
                lambda reader=reader: [reader[a:b] for a, b in units],
            ),
            "read blocks of 512 rows": (
                lambda: read_tiles(dataset),
                lambda reader=reader: [reader[a : a + 512] for a in range(0, rows, 512)],
            ),
        }
        for work, both in works.items():
            taken = np.array([[timed(act) for act in both] for _ in range(repeats)])
            (ours, ours_cpu), (theirs, theirs_cpu) = np.median(taken, axis=0).tolist()
            yield Comparison(work, other, ours, theirs, ours_cpu, theirs_cpu)


def timed(act: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of processor time in all threads."""
    started, busy = time.perf_counter(), time.process_time()
    act()
    return time.perf_counter() - started, time.process_time() - busy


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
        for row in compare(place):
            print(
                f"{row.work}: {row.other} takes {row.theirs / row.ours:.2f} times our {row.ours:.3f} s,"
                f" {row.theirs_cpu / row.ours_cpu:.2f} times the processor time"
            )
