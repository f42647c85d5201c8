"""Passes on standardised features, block by block.

    python -m tests.benchmarks.solvers.standardised_blocks --data DIR

Where rows are many, features standardised and C large, blocks that ascend at the same time undo each other's
work.  The table has the passes of `--method` to a relative gap of 1e-3 for every set, C and number of blocks;
a > marks a run that ended at `--passes` or `--cap` seconds.
"""

from __future__ import annotations

import argparse

import numpy as np

from tests.benchmarks.datasets import DATA_DIR
from tests.benchmarks.harness import print_head, print_row, read_options, sets_there
from topline import MaxHinge, SerialExecutor, Status, TopKHinge, solve

LOSSES = {"max_hinge": MaxHinge(), "topk_hinge": TopKHinge(5)}
#: Sets of shared data, and shapes (n, d, m) and noise of drawn ones.
SHARED = ("usps", "letter", "satimage")
DRAWN = {"synthetic 11,000 x 17": (11_000, 17, 10, 1.5), "synthetic 4,000 x 40": (4_000, 40, 20, 2.0)}


def drawn(n: int, d: int, m: int, noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows of m overlapping classes whose features are correlated."""
    rng = np.random.default_rng(seed)
    centres, y = rng.normal(size=(m, d)), rng.integers(m, size=n)
    mix = rng.normal(size=(d, d)) / np.sqrt(d)
    return (centres[y] + noise * rng.normal(size=(n, d))) @ mix, y


def standardised(X: np.ndarray) -> np.ndarray:
    """Return the columns with mean 0 and deviation 1, constant ones 0, in float32."""
    deviation = X.std(axis=0)
    return ((X - X.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)).astype(np.float32)


def cell(X: np.ndarray, y: np.ndarray, C: float, blocks: int, options: argparse.Namespace) -> str:
    """Give the passes of one run."""
    result = solve(
        X, y, LOSSES[options.loss], lam=1.0 / (len(y) * C), method=options.method, max_passes=options.passes,
        time_limit=options.cap, executor=SerialExecutor(blocks=blocks),
    )  # fmt: skip
    return f"{'' if result.status is Status.SOLVED else '> '}{result.passes:,}"


def main(arguments: list[str] | None = None) -> None:
    """Print the table as Markdown."""
    options = read_options(
        __doc__, arguments, data=DATA_DIR, loss="max_hinge", method="auto", blocks=[1, 2, 8, 32],
        C=[0.1, 1.0, 10.0], passes=3_000, cap=60.0, sets=[*DRAWN, *SHARED], rows=int,
    )  # fmt: skip
    sets = {name: drawn(*shape) for name, shape in DRAWN.items() if name in options.sets}
    for data in sets_there([name for name in SHARED if name in options.sets], options.data):
        sets[data.name] = np.asarray(data.X, dtype=np.float64), data.y
    print_head("set, C", *(f"blocks {blocks}" for blocks in options.blocks))
    for name, (X, y) in sets.items():
        rows = standardised(X[: options.rows])
        for C in options.C:
            cells = [cell(rows, y[: options.rows], C, blocks, options) for blocks in options.blocks]
            print_row(f"{name}, {C:g}", *cells)


if __name__ == "__main__":
    main()
