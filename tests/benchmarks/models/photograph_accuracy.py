"""Held-out accuracy of `topline run` on public photographs and drawings, as it comes and with each backbone.

    python -m tests.benchmarks.models.photograph_accuracy [--data FOLDER] [--sets amazon scenes omniglot]
        [--quick]

Splits, loss and C are the defaults; CPU seconds are of the whole job in this process.  The bars: top-1 of at
least 95 % on Office-Caltech's amazon and 90 % on the subset of the 15 scenes; on Omniglot no worse than HOG.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tests.benchmarks.datasets import DATA_DIR
from tests.benchmarks.harness import read_options, unpacked
from tests.pipeline.pictures import write_classes
from topline.pipeline.jobs import run
from topline.pipeline.options import ClusterConfig, ExtractConfig, RunConfig

SETS = {
    "amazon": ("office_caltech/images_amazon.zip", "amazon"),
    "scenes": ("scene15/scene15_subset.zip", ""),
    "omniglot": ("omniglot/images_background_small1.zip", "images_background_small1"),
}
BACKBONES = (None, "hog", "efficientnet_lite0")


def accuracies(name: str, images: Path, place: Path) -> dict[str, float]:
    """Print a line for each backbone, and return top-1 by its name, under "default" as it comes."""
    found = {}
    for backbone in BACKBONES:
        began = time.process_time()
        config = RunConfig(
            store=str(place / f"{name}-{backbone}"),
            extract=ExtractConfig(images=str(images), backbone=backbone),
        )
        result = run(config, ClusterConfig(workers=0))
        seconds = time.process_time() - began
        topk = result.evaluation.topk
        label = f"default, {result.features.partition(': ')[2].split()[0]}" if backbone is None else backbone
        print(
            f"{name:<10} {label:<32} top-1 {topk[1]:6.1%}  top-5 {topk[max(k for k in topk if k <= 5)]:6.1%}"
            f"   {seconds:5.1f} CPU s, {sum(result.statuses.values()):,} images"
        )
        found[backbone or "default"] = topk[1]
    return found


def main(arguments: list[str] | None = None) -> dict[str, dict[str, float]]:
    options = read_options(__doc__, arguments, data=DATA_DIR, sets=list(SETS), quick=False)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if options.quick:
            return {"stripes": accuracies("stripes", write_classes(place / "stripes", 3, 8), place)}
        found = {}
        for name in options.sets:
            archive, below = SETS[name]
            images = unpacked(options.data / archive, place / name) / below
            found[name] = accuracies(name, images, place)
        return found


if __name__ == "__main__":
    main()
