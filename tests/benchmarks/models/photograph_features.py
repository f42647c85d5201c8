"""Images a second of the default features of photographs against those of the bare network, in CPU seconds.

    python -m tests.benchmarks.models.photograph_features [--data FOLDER] [--quick]

Takes the 958 photographs of Office-Caltech's amazon (300 x 300 JPEG) where they are, and as many made here
otherwise.  The bare network gets arrays that are ready, two images a call; a worker reads, hashes, decodes,
resizes and describes the same images.  Both go in turns, 32 images each time, so that a busy machine slows
both.  A thread decodes beside a worker's network: the worker's own thread spends its time on the network and
on laying out its input, and has the bar of 90 % of the bare network's images a second, which holds by the
clock where a core is free for the other thread.  Where none is, it is the last line.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from tests.benchmarks.datasets import DATA_DIR
from tests.benchmarks.harness import read_options, unpacked
from topline.pipeline.backbones import make_backbone
from topline.pipeline.images import list_images, read_picture
from topline.pipeline.ingest import Describer, ImageRow
from topline.pipeline.options import BackboneConfig, ImageLimits

ARCHIVE = "office_caltech/images_amazon.zip"
BATCH = 32


def photographs(folder: Path, data: Path, count: int) -> Path:
    """Put the photographs, or `count` made ones, into a folder."""
    if (data / ARCHIVE).is_file():
        return unpacked(data / ARCHIVE, folder)
    rng = np.random.default_rng(0)
    (folder / "made").mkdir()
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 12, 3), dtype=np.uint8))
        coarse.resize((300, 300), Image.Resampling.BICUBIC).save(folder / "made" / f"{number}.jpg")
    return folder


def measure(folder: Path, count: int | None) -> dict[str, float]:
    """Return CPU seconds of the bare network, of a worker's own thread and of all its threads, and images."""
    listing = list_images(str(folder)).shuffled()
    items = listing.items[:count]
    backbone = make_backbone(BackboneConfig(backbone="efficientnet_lite0"))
    describer = Describer(listing.root, backbone, ImageLimits())
    network = backbone.open()
    name = network.network.input_name
    spent = {"network": 0.0, "worker": 0.0, "all": 0.0, "images": float(len(items))}
    for start in range(0, len(items), BATCH):
        some = items[start : start + BATCH]
        pictures = [
            read_picture(item.read(listing.root, 1 << 24), side=backbone.side).pixels for item in some
        ]
        squares = np.stack([network.prepare(picture) for picture in pictures])
        ready = ((squares.transpose(0, 3, 1, 2).astype(np.float32) - 127) / 128).copy()
        began = time.thread_time()
        bare = [
            network.session.run(None, {name: ready[place : place + network.at_once]})[0]
            for place in range(0, len(ready), network.at_once)
        ]
        spent["network"] += time.thread_time() - began
        rows = [ImageRow(item) for item in some]
        own, everything = time.thread_time(), time.process_time()
        found = np.concatenate(list(describer.describe_in_parts(network, rows, 8)))
        spent["worker"] += time.thread_time() - own
        spent["all"] += time.process_time() - everything
        np.testing.assert_allclose(found, np.concatenate(bare), atol=1e-4)
    return spent


def main(arguments: list[str] | None = None) -> dict[str, float]:
    options = read_options(__doc__, arguments, data=DATA_DIR, quick=False)
    with tempfile.TemporaryDirectory() as place:
        data = Path(place) if options.quick else options.data
        folder = Path(place) / "photographs"
        folder.mkdir()
        spent = measure(
            photographs(folder, data, 64 if options.quick else 958), 64 if options.quick else None
        )
    images = spent["images"]
    print(f"{images:.0f} images, CPU milliseconds an image, one thread")
    for name, what in (
        ("network", "the bare network"),
        ("worker", "a worker's own thread"),
        ("all", "with the thread that reads and decodes"),
    ):
        share = spent["network"] / spent[name]
        print(f"  {what:<40} {1000 * spent[name] / images:6.2f}   {share:6.1%} of the network's images/s")
    return spent


if __name__ == "__main__":
    main()
