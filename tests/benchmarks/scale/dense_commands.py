"""What `topline train` costs beside `solve` on the same dense rows, without workers and with them.

    python -m tests.benchmarks.scale.dense_commands [--rows N] [--d D] [--m M] [--workers 0 2] [--repeats N]

stores unit rows behind a ReLU, trains the max hinge at C = 1 by the library and by the command in turn, and
prints the passes of both to a certified gap of 1e-3, and the seconds on the clock as medians.  The first
`solve` compiles and is not timed.  The command's seconds are those of its process: "train" and "certify" as
its answer says, and "else", which is starting Python, loading compiled loops, reading and publishing.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from tests.benchmarks.datasets import DataSet, relu_features
from tests.benchmarks.harness import read_options
from tests.benchmarks.tree_memory import command_cost
from tests.pipeline.small_data import write_dataset
from topline import MaxHinge, solve
from topline.storage.arrays import ChunkPlan
from topline.storage.stores import open_store


@dataclass(frozen=True)
class Cost:
    """Passes and median seconds of `solve` and of the command."""

    workers: int
    solve_passes: int
    passes: int
    solve: float
    command: float
    train: float
    certify: float

    def __str__(self) -> str:
        rest = self.command - self.train - self.certify
        seconds = (self.solve, self.command, self.command - self.solve, self.train, self.certify, rest)
        cells = " | ".join(f"{value:.1f}" for value in seconds)
        return f"| {self.workers} | {self.solve_passes} | {self.passes} | {cells} |"


def cost(data: DataSet, folder: Path, workers: int, repeats: int) -> Cost:
    """Train by the library and by the command in turn, so often."""
    lam = 1.0 / len(data.y)
    solve(data.X, data.y, MaxHinge(), lam, m=data.m)
    words = ["train", "--store", str(folder), "--loss", "max_hinge", "--C", "1", "--transforms", "none"]
    took, costs, passes = [], [], 0
    for _ in range(repeats):
        began = time.monotonic()
        passes = solve(data.X, data.y, MaxHinge(), lam, m=data.m).passes
        took.append(time.monotonic() - began)
        costs.append(command_cost([*words, "--workers", str(workers)]))
    return Cost(
        workers,
        passes,
        costs[0].answer["passes"],
        median(took),
        median(one.wall for one in costs),
        median(one.answer["seconds"] for one in costs),
        median(one.answer["certificate"]["seconds"] for one in costs),
    )


def main(arguments: Sequence[str] | None = None) -> list[Cost]:
    """Measure and print; return what was measured."""
    options = read_options(__doc__, arguments, rows=16_000, d=1_025, m=100, workers=[0, 2], repeats=3)
    X, y = relu_features(options.rows, options.d, options.m)
    data = DataSet("relu", X, y.astype(np.int32))
    print(data.title)
    print("| workers | passes: solve | command | s: solve | command | more | train | certify | else |")
    print("|---" * 9 + "|")
    found = []
    with tempfile.TemporaryDirectory() as place:
        store, n = open_store(place, create=True), options.rows
        split = np.zeros(n, dtype=np.int8)
        write_dataset(store, X, data.y, split, m=data.m, plan=ChunkPlan.choose(n, options.d, 4))
        for workers in options.workers:
            one = cost(data, Path(place), workers, options.repeats)
            print(one, flush=True)
            found.append(one)
    return found


if __name__ == "__main__":
    main()
