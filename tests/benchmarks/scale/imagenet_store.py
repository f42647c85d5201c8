"""A store with features of ImageNet's shape, as a network behind a ReLU gives them; always the same ones.

Classes form groups of twenty that resemble each other, images vary along a few directions that all classes
share, and every feature has noise of its own: the nearest class mean finds 7 of 10 labels, and 19 of 20 among
its best five.  Three features of five are 0.  Each shard depends on its number alone, so that any number of
processes makes the same store, and one that was stopped goes on.
"""

from __future__ import annotations

import multiprocessing
from contextlib import nullcontext
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import Dataset, DatasetWriter, empty_manifest, find_by_key
from topline.storage.stores import open_store

#: Spreads of the means of groups and of classes in them, and of the shared directions; the noise has 1.
GROUP, OWN, SHARED, DIRECTIONS = 0.12, 0.07, 0.25, 32
#: What a unit must reach to fire.
THRESHOLD = 0.5


def imagenet_store(folder: Path, n: int, d: int, m: int, processes: int = 2) -> Dataset:
    """Open the dataset of that size in `folder`; it is made where it is not there yet, float16 on disk."""
    store = open_store(folder, create=True)
    key = f"imagenet-{n}-{d}-{m}"
    info = find_by_key(store, key)
    if info is None:
        plan = ChunkPlan.choose(n, d, 2)
        recipe = {"backbone": "synthetic", "means": [GROUP, OWN, SHARED, THRESHOLD], "directions": DIRECTIONS}
        writer = DatasetWriter.begin(store, key, d, "float16", plan, recipe)
        missing = sorted(set(range(plan.units)) - writer.done_units())
        with multiprocessing.get_context("spawn").Pool(processes) if processes > 1 else nullcontext() as pool:
            made = (pool.imap_unordered if pool else map)(partial(write_shard, writer, m), missing)
            for done, _ in enumerate(made, start=1):
                if done % 100 == 0 or done == len(missing):
                    print(f"made {done} of {len(missing)} shards", flush=True)
        names = [f"class {number:04d}" for number in range(m)]
        info = writer.commit(labels_of(n, m), np.zeros(n, dtype=np.int8), names)
    return Dataset.open(store, info.id)


@lru_cache(1)
def labels_of(n: int, m: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Give labels (n,), every class as often as any other, in random order."""
    return np.random.default_rng(n).permutation(n).astype(np.int32) % np.int32(m)


def write_shard(writer: DatasetWriter, m: int, unit: int) -> None:
    """Make the rows of one shard and write them."""
    span = writer.plan.bounds(unit)
    random = np.random.default_rng((m, unit))
    y = labels_of(writer.plan.n_rows, m)[span.start : span.stop]
    means, directions = class_means(m, writer.d)
    with threadpool_limits(1):
        X = random.standard_normal((span.rows, writer.d), dtype=np.float32)
        X += means[y]
        X += random.standard_normal((span.rows, DIRECTIONS), dtype=np.float32) @ directions
    np.maximum(X - np.float32(THRESHOLD), 0.0, out=X)
    writer.write_unit(unit, X, empty_manifest([f"image {row:07d}" for row in range(span.start, span.stop)]))


@lru_cache(1)
def class_means(m: int, d: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Give the means of the classes (m, d) before the threshold, and the shared directions."""
    random = np.random.default_rng((m, d))
    groups = GROUP * random.standard_normal((-(-m // 20), d), dtype=np.float32)
    means = groups[np.arange(m) % len(groups)] + OWN * random.standard_normal((m, d), dtype=np.float32)
    return means, SHARED * random.standard_normal((DIRECTIONS, d), dtype=np.float32)
