"""Exact kernels on two workers: CPU time, memory and what they grow with, beside scikit-learn's SVC.

    python -m tests.benchmarks.kernels.rbf_machines [--data FOLDER] [--rows 5000 10000 20000]
        [--synthetic 15000 30000 60000] [--factor SECONDS] [--method NAME] [--quick]

trains RBF machines at C = 4, gamma = "scale", by `topline train` on stores of letter (all 20,000 rows in an
order of their own, and the first so many of them), max and top-5 hinge, to a certified gap of 1e-3, and on a
synthetic set (d = 64, m = 10) of `--synthetic` rows to 1e-2.  Of each it also prints how CPU time and memory
grow: the power of n that fits the sizes best.  CPU time is that of all processes, certificate included, and
so is memory: PSS at its most, the coordinator's own share of that, and its own most RSS.  SVC solves another
problem, one machine for each pair of classes: its time is a yardstick, not a rival.

`--factor SECONDS` also solves the same problems of letter by the factor of the whole kernel matrix, here,
each until it is solved or has had so many seconds, and prints how many times the CPU time that is: at least
so many, where it was not solved.  It takes 24 n^2 bytes, 9.6 GB for 20,000 rows.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.svm import SVC

from tests.benchmarks.datasets import DATA_DIR, DataSet, load
from tests.benchmarks.harness import print_head, print_row, read_options
from tests.benchmarks.tree_memory import command_cost
from tests.pipeline.small_data import write_dataset
from topline import MaxHinge, Status, TopKHinge, solve
from topline.solvers.kernels import KernelFeatures, problem
from topline.storage.arrays import ChunkPlan
from topline.storage.stores import open_store

C = 4.0
PLAN = partial(ChunkPlan, chunk_rows=1024, shard_rows=4096)
LOSSES = {"max hinge": ("max_hinge",), "top-5 hinge": ("topk_hinge", "--k", "5")}


@dataclass(frozen=True)
class Cost:
    """What one training took, and what it reached; bytes are the most at one time."""

    name: str
    n: int
    gap: float
    certified: bool
    cpu: float
    wall: float
    all_bytes: int
    coordinator_bytes: int
    coordinator_rss: int

    def cells(self) -> list[str]:
        sizes = (self.all_bytes, self.coordinator_bytes, self.coordinator_rss)
        return [
            self.name, f"{self.n:,}", f"{self.gap:.1e}", "yes" if self.certified else "no",
            f"{self.cpu:.1f}", f"{self.wall:.0f}", *(f"{size / 2**20:.0f}" for size in sizes),
        ]  # fmt: skip


def synthetic(rows: int) -> DataSet:
    """Give ten overlapping clouds of three centres each in 64 dimensions."""
    random = np.random.default_rng(0)
    y = np.arange(rows) % 10
    centres = random.normal(size=(10, 3, 64))
    X = centres[y, random.integers(0, 3, rows)] + random.normal(0.0, 1.5, (rows, 64))
    order = random.permutation(rows)
    return DataSet("synthetic", X[order].astype(np.float32), y[order].astype(np.int32))


def letters(folder: Path) -> DataSet:
    """Give all rows of letter in an order of their own; FileNotFoundError without the file."""
    return load("letter_all", folder).shuffled()


def trained(
    data: DataSet, rows: int, name: str, loss: Sequence[str], tol: float, workers: int, method: str = "auto"
) -> Cost:
    """Train on the first rows of a set in a process of its own, and measure it."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(folder, create=True)
        write_dataset(
            store, data.X[:rows], data.y[:rows], np.zeros(rows, dtype=np.int8), m=data.m, plan=PLAN(rows)
        )
        spent = command_cost(
            [
                "train", "--store", folder, "--loss", *loss, "--C", str(C), "--kernel", "rbf", "--transforms",
                "none", "--tol", str(tol), "--method", method, "--workers", str(workers),
                "--memory-limit", "4GiB",
            ]
        )  # fmt: skip
    certificate = spent.answer["certificate"]
    return Cost(
        name, rows, certificate["relative_gap"], certificate["certified"], spent.cpu, spent.wall,
        spent.peak.pss, spent.own_bytes, spent.own_rss,
    )  # fmt: skip


def growth(costs: Sequence[Cost]) -> list[str]:
    """Say of every problem with two sizes or more by which powers of n its costs grow."""
    lines = []
    for name in dict.fromkeys(cost.name for cost in costs):
        of_name = [cost for cost in costs if cost.name == name]
        sizes = np.log([cost.n for cost in of_name])
        if len(of_name) < 2:
            continue
        grown = (
            ("CPU time", [cost.cpu for cost in of_name]),
            ("all memory", [cost.all_bytes for cost in of_name]),
            ("the coordinator's RSS", [cost.coordinator_rss for cost in of_name]),
        )
        powers = [f"{what} as n^{np.polyfit(sizes, np.log(values), 1)[0]:.2f}" for what, values in grown]
        lines.append(f"{name}: {', '.join(powers)}")
    return lines


def svc_seconds(data: DataSet, rows: int) -> float:
    """Give the CPU seconds of scikit-learn's SVC on the same rows."""
    began = time.process_time()
    SVC(C=C, gamma="scale", tol=1e-3).fit(data.X[:rows].astype(np.float64), data.y[:rows])
    return time.process_time() - began


def factor_costs(data: DataSet, rows: int, seconds: float) -> dict[str, Cost]:
    """Solve by one factor of the kernel matrix, each loss for so many seconds; Cholesky counts in each."""
    X, y = data.X[:rows], data.y[:rows]
    problem.MEMORY_BYTES = 1 << 40
    began, since = time.process_time(), time.monotonic()
    features = KernelFeatures.of("rbf", X)
    cpu, wall = time.process_time() - began, time.monotonic() - since
    costs = {}
    for name, loss in {"max hinge": MaxHinge(), "top-5 hinge": TopKHinge(5)}.items():
        began, since = time.process_time(), time.monotonic()
        result = solve(X, y, loss, 1.0 / (rows * C), kernel=features, tol=1e-3, time_limit=seconds, m=data.m)
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        costs[f"letter, {name}"] = Cost(
            f"factor, {name}", rows, result.relative_gap, result.status is Status.SOLVED,
            cpu + time.process_time() - began, wall + time.monotonic() - since, peak, peak, peak,
        )  # fmt: skip
    return costs


def main(arguments: Sequence[str] | None = None) -> list[Cost]:
    """Measure and print; return the costs."""
    options = read_options(
        __doc__, arguments, data=DATA_DIR, rows=[5000, 10000, 20000], synthetic=[15000, 30000, 60000],
        workers=2, method="auto", factor=0.0, quick=False,
    )  # fmt: skip
    runs = []
    if options.quick:
        runs = [(synthetic(400), 400, "synthetic, max hinge", LOSSES["max hinge"], 1e-2)]
    else:
        data = letters(options.data) if options.rows else None
        for rows in options.rows:
            runs += [(data, rows, f"letter, {name}", loss, 1e-3) for name, loss in LOSSES.items()]
        runs += [
            (synthetic(n), n, "synthetic, max hinge", LOSSES["max hinge"], 1e-2)
            for n in options.synthetic
            if n > 0
        ]
    print_head(
        "problem", "n", "gap", "certified", "CPU s", "wall s", "all MiB", "own MiB", "own RSS", "SVC s"
    )
    costs = []
    for data, rows, name, loss, tol in runs:
        cost = trained(data, rows, name, loss, tol, options.workers, options.method)
        print_row(*cost.cells(), f"{svc_seconds(data, rows):.1f}")
        costs.append(cost)
    print(*growth(costs), sep="\n")
    if options.factor and options.rows and not options.quick:
        _beside_the_factor(letters(options.data), max(options.rows), options.factor, costs)
    return costs


def _beside_the_factor(data: DataSet, rows: int, seconds: float, costs: Sequence[Cost]) -> None:
    """Print what the factor method takes on so many rows, and how many times what blocks took that is."""
    blocks = {cost.name: cost for cost in costs if cost.n == rows}
    for name, cost in factor_costs(data, rows, seconds).items():
        least = "" if cost.certified else "at least "
        print_row(*cost.cells(), f"{least}{cost.cpu / blocks[name].cpu:.1f} times")


if __name__ == "__main__":
    main()
