"""Smooth losses on sparse rows by `topline train`: its choice beside L-BFGS, here and on workers.

    python -m tests.benchmarks.scale.sparse_commands [--data FOLDER] [--workers 0 2] [--repeats N] [--quick]

stores the word counts of 20 newsgroups, trains the softmax and one-vs-all logistic at C = 1 and 10 in turn by
the method that "auto" takes and by `lbfgs`, each time in a process of its own, and prints the passes to a
certified gap of 1e-3, those of `solve` on the same rows, and the CPU seconds of all processes, certificate
included, as medians; the last column is their ratio.  --quick takes some hundred made-up rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from scipy import sparse

from tests.benchmarks.datasets import DATA_DIR, DataSet, load
from tests.benchmarks.harness import read_options
from tests.benchmarks.tree_memory import CommandCost, command_cost
from tests.pipeline.small_data import write_dataset
from topline import OneVsAll, Softmax, solve
from topline.storage.arrays import ChunkPlan
from topline.storage.stores import open_store

LOSSES = {"softmax": Softmax(), "one_vs_all_logistic": OneVsAll("logistic")}
METHODS = "auto", "lbfgs"


@dataclass(frozen=True)
class Comparison:
    """What one problem took: the method of the command's choice, passes, and CPU seconds by method."""

    problem: str
    workers: int
    method: str
    passes: dict[str, int]
    cpu: dict[str, float]

    def __str__(self) -> str:
        passes = " | ".join(str(self.passes[name]) for name in ("solve", *METHODS))
        cpu = " | ".join(f"{self.cpu[name]:.1f}" for name in METHODS)
        ratio = self.cpu["lbfgs"] / self.cpu["auto"]
        return f"| {self.problem} | {self.workers} | {self.method} | {passes} | {cpu} | {ratio:.1f} |"


def made_up() -> DataSet:
    """Give rows of a few words each, which their class says more about than others."""
    random = np.random.default_rng(0)
    n, d, m = 300, 200, 3
    y = (np.arange(n) % m).astype(np.int32)
    X = np.where(random.random((n, d)) < 0.05, 1.0, 0.0).astype(np.float32)
    X[np.arange(n), y] = 1.0
    return DataSet("made-up", sparse.csr_matrix(X), y)


def compared(data: DataSet, folder: Path, loss: str, C: float, workers: int, repeats: int) -> Comparison:
    """Train by each method in turn, so often."""
    n = len(data.y)
    library = solve(data.X, data.y, LOSSES[loss], 1.0 / (n * C), m=data.m)
    costs: dict[str, list[CommandCost]] = {name: [] for name in METHODS}
    for _ in range(repeats):
        for name in METHODS:
            words = ["--loss", loss, "--C", str(C), "--transforms", "none", "--method", name]
            costs[name] += [
                command_cost(["train", "--store", str(folder), *words, "--workers", str(workers)])
            ]
    answers = {name: of_name[0].answer for name, of_name in costs.items()}
    return Comparison(
        f"{loss}, C = {C:g}",
        workers,
        answers["auto"]["method"],
        {"solve": library.passes, **{name: answer["passes"] for name, answer in answers.items()}},
        {name: median(cost.cpu for cost in of_name) for name, of_name in costs.items()},
    )


def main(arguments: Sequence[str] | None = None) -> list[Comparison]:
    """Measure and print; return the comparisons."""
    options = read_options(__doc__, arguments, data=DATA_DIR, workers=[0, 2], repeats=1, quick=False)
    data = made_up() if options.quick else load("news20", options.data)
    losses, Cs = (["softmax"], [1.0]) if options.quick else (list(LOSSES), [1.0, 10.0])
    heads = "| problem | workers | method | passes: solve | auto | lbfgs | CPU s: auto | lbfgs | times |"
    print(f"{data.title}\n{heads}\n{'|---' * 9}|")
    found = []
    with tempfile.TemporaryDirectory() as place:
        n, store = len(data.y), open_store(place, create=True)
        split = np.zeros(n, dtype=np.int8)
        write_dataset(store, data.X, data.y, split, m=data.m, plan=ChunkPlan(n, 1024, 4096))
        for loss in losses:
            for C in Cs:
                for workers in options.workers:
                    one = compared(data, Path(place), loss, C, workers, options.repeats)
                    print(one, flush=True)
                    found.append(one)
    return found


if __name__ == "__main__":
    main()
