"""Many classes: seconds, passes and memory of a certified training as m grows.

    python -m tests.benchmarks.scale.many_classes --folder /data/big --rows 20000 --m 1000 3000 10000

makes a store of clustered features for every m (`tests.benchmarks.scale.imagenet_store`), trains from the
command line to a relative gap of --tol, samples the memory of all processes, and prints a line for each m.
As arrays the dual variables of n rows in m classes and their change take 8 n m bytes; where the memory limit
does not hold them they are packed, and their nonzeros alone take room.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.benchmarks.harness import SCRATCH, read_options
from tests.benchmarks.scale import imagenet_size
from tests.benchmarks.scale.imagenet_store import imagenet_store


def line_of(m: int, training: imagenet_size.Training) -> str:
    """Lay out what came of a training of m classes."""
    result, certificate = training.result, training.result["certificate"]
    valid = "valid" if certificate["valid"] else "NOT VALID"
    dense = 8 * result["n"] * m / 2**30
    return (
        f"{m:>8,}{result['passes']:>8}{training.seconds:>10.1f}{training.seconds_per_pass:>10.2f}"
        f"{training.pss / 2**30:>10.2f}{dense:>10.2f}"
        f"{result['relative_gap']:>12.2e}  {result['status']}, {valid}"
    )


def main(arguments: Sequence[str] | None = None) -> list[imagenet_size.Training]:
    """Run the command."""
    options = read_options(
        __doc__, arguments, folder=SCRATCH, rows=20_000, d=512, m=[1000, 3000, 10_000], loss="topk_hinge",
        method="auto", C=1.0, tol=1e-2, passes=200, workers=0, memory_limit="7.5GiB", makers=1,
        cache_bytes=int, blocks=int,
    )  # fmt: skip
    datasets = {
        m: imagenet_store(options.folder, options.rows, options.d, m, options.makers) for m in options.m
    }
    print(f"n = {options.rows:,}, d = {options.d:,}, {options.loss}, C = {options.C:g}, to {options.tol:g}")
    print(f"{'m':>8}{'passes':>8}{'seconds':>10}{'a pass':>10}{'GiB':>10}{'8 n m':>10}{'gap':>12}  ended")
    found = []
    for m, dataset in datasets.items():
        found.append(imagenet_size.train(options, dataset))
        print(line_of(m, found[-1]), flush=True)
        dataset.store.delete_tree(f"runs/{found[-1].result['run']}")
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
