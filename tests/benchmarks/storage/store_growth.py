"""How a store grows by versions of one image each: `python -m tests.benchmarks.storage.store_growth`.

Images are described once, and then one is added and a version made, thirty times; standard error says how far
it is.  What the store takes is
set beside the features of all its images, as the store compresses them: these in a store of their own.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from tests.benchmarks.harness import read_options
from topline.pipeline.ingest import extract
from topline.pipeline.options import ClusterConfig, ExtractConfig
from topline.storage.datasets import Dataset
from topline.storage.stores import Store, open_store

CLASSES = 10
SIDE = 28


class Growth(NamedTuple):
    """Bytes of all files of a store with many versions, and of the features of its last version alone."""

    store: int
    features: int
    versions: int
    units: int

    @property
    def ratio(self) -> float:
        """Bytes of the store for one byte of features."""
        return self.store / self.features


def photograph(folder: Path, number: int) -> None:
    """Add a picture of noise to one of the classes."""
    pixels = np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    place = folder / f"c{number % CLASSES}" / f"{number:06d}.png"
    place.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(place, compress_level=0)


def grow(folder: Path, images: int, versions: int) -> Growth:
    """Make the versions, and measure."""
    photos = folder / "photos"
    for number in range(images):
        photograph(photos, number)
    version(photos, folder / "store")
    for number in range(images, images + versions):
        photograph(photos, number)
        version(photos, folder / "store")
        sys.stderr.write(f"{number + 1 - images} of {versions} versions\n")
    store = open_store(folder / "store")
    latest = Dataset.open(store)
    alone = version(photos, folder / "alone")
    return Growth(stored_bytes(store), feature_bytes(alone), len(store.list("datasets")), len(latest.units))


def version(photos: Path, store: Path) -> Dataset:
    """Make the version of the images that are there."""
    config = ExtractConfig(images=str(photos), store=str(store), backbone=f"hog:size={SIDE},cells=4")
    info = extract(config, ClusterConfig(workers=0), follow=True).info
    return Dataset(open_store(store), info)


def stored_bytes(store: Store) -> int:
    """Return the bytes of all files of a store."""
    return sum(store.size(path) for path in store.walk())


def feature_bytes(dataset: Dataset) -> int:
    """Return the bytes of the features of a dataset, as they are stored."""
    return sum(entry.size for unit in range(len(dataset.units)) for entry in dataset.unit_files(unit).entries)


def main(arguments: Sequence[str] | None = None) -> Growth:
    """Run the command."""
    options = read_options(__doc__, arguments, images=6_000, versions=30)
    with tempfile.TemporaryDirectory() as folder:
        growth = grow(Path(folder), options.images, options.versions)
    print(
        f"{growth.versions} versions of {options.images:,} to {options.images + options.versions:,} images:"
        f" {growth.store:,} bytes, {growth.ratio:.3f} times their features ({growth.features:,} bytes);"
        f" the last one has {growth.units} units"
    )
    return growth


if __name__ == "__main__":
    main()
