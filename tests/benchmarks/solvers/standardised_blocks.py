"""Passes on standardised features, block by block.

    python -m tests.benchmarks.solvers.standardised_blocks --data DIR

Where rows are many, features standardised and C large, blocks that ascend at the same time undo each other's
work.  The table has the passes of `--method` to a relative gap of 1e-3 for every set, C and number of blocks;
a > marks a run that ended at `--passes` or `--cap` seconds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from tests.benchmarks.datasets import DATA_DIR, load
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA_DIR)
    parser.add_argument("--loss", choices=LOSSES, default="max_hinge")
    parser.add_argument("--method", default="auto")
    parser.add_argument("--blocks", type=int, nargs="+", default=[1, 2, 8, 32])
    parser.add_argument("--C", type=float, nargs="+", default=[0.1, 1.0, 10.0])
    parser.add_argument("--passes", type=int, default=3_000)
    parser.add_argument("--cap", type=float, default=60.0)
    parser.add_argument("--sets", nargs="+", help="of the names in the table; all by default")
    parser.add_argument("--rows", type=int, help="of each set, the first so many")
    options = parser.parse_args(arguments)
    wanted = options.sets or [*DRAWN, *SHARED]
    sets = {name: drawn(*shape) for name, shape in DRAWN.items() if name in wanted}
    for name in SHARED:
        if name not in wanted:
            continue
        try:
            data = load(name, options.data)
        except FileNotFoundError as missing:
            print(f"{name}: skipped, {missing.filename} is not there", file=sys.stderr)
            continue
        sets[name] = np.asarray(data.X, dtype=np.float64), data.y
    print("| set, C | " + " | ".join(f"blocks {blocks}" for blocks in options.blocks) + " |")
    print("|" + "---|" * (len(options.blocks) + 1))
    for name, (X, y) in sets.items():
        rows = standardised(X[: options.rows])
        for C in options.C:
            cells = [cell(rows, y[: options.rows], C, blocks, options) for blocks in options.blocks]
            print(f"| {name}, {C:g} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
