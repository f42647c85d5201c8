"""A whole sweep from a store under a memory limit beside one fit at the C that it chooses, as users run both.

    python -m tests.benchmarks.sweeps.stored_sweep --folder FOLDER [--rows 200000] [--d 1024] [--m 100]
        [--C 1e-3:1e2:45] [--losses topk_hinge,softmax,topk_entropy] [--k 5] [--folds 5]
        [--memory-limit 4GiB] [--workers 2] [--rule race]

makes a store of clustered rows behind a ReLU once (`relu_features`), runs `topline sweep --memory-limit` on
it and `topline train` at the best cell, from zero to the same relative gap 1e-3, and prints passes over all
rows, CPU seconds and seconds of both commands, all their processes included, their ratios, and the most
memory (PSS) of all processes of each at one time.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.benchmarks.datasets import relu_features
from tests.benchmarks.harness import SCRATCH, read_options
from tests.benchmarks.tree_memory import CommandCost, command_cost
from tests.pipeline.small_data import write_dataset
from topline.pipeline.sweep import SweepResult
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import Dataset, find_by_key
from topline.storage.records import from_fields
from topline.storage.stores import open_store


def relu_store(folder: Path, n: int, d: int, m: int) -> Dataset:
    """Open the dataset of that size in `folder`, in float32; it is made where it is not there yet."""
    store, key = open_store(folder, create=True), f"relu-{n}-{d}-{m}"
    info = find_by_key(store, key)
    if info is None:
        X, y = relu_features(n, d, m)
        split, plan = np.zeros(n, dtype=np.int8), ChunkPlan.choose(n, d, 4)
        info = write_dataset(store, X, y.astype(np.int32), split, plan=plan, key=key, m=m)
    return Dataset.open(store, info.id)


def swept(dataset: Dataset, options: argparse.Namespace, *words: str) -> tuple[SweepResult, CommandCost]:
    """Run the sweep as a user does."""
    cost = command_cost(
        [
            "sweep", *place(dataset, options), "--C", options.C, "--loss", options.losses,
            "--k", str(options.k), "--topk", "1", "--folds", str(options.folds),
            "--rule", options.rule, *words,
        ]
    )  # fmt: skip
    return from_fields(SweepResult, cost.answer, "the answer"), cost


def place(dataset: Dataset, options: argparse.Namespace) -> list[str]:
    """Give the words that say on what and where a command works."""
    return [
        "--store", dataset.store.url, "--dataset", dataset.info.id,
        "--memory-limit", options.memory_limit, "--workers", str(options.workers), "--worker-wait", "600",
    ]  # fmt: skip


def print_cells(result: SweepResult) -> None:
    """Print what was looked at, the choice, and a line for each cell."""
    best, cells = result.best, len(result.cells) + len(result.skipped)
    print(
        f"n {result.n:,}, d {result.d:,}, m {result.m:,}: {len(result.cells)} of {cells} cells looked at,"
        f" {result.folds} folds, best {best.variant.name} C {best.C:g}, accuracy {best.mean:.4f}"
    )
    for cell in result.cells:
        print(
            f"  {cell.variant.name:<24} C {cell.C:<9g} {cell.mean:.4f} +- {cell.error:.4f}"
            f"  gap {cell.relative_gap:.0e}  {cell.passes:5d} passes, {cell.seconds:6.1f} s  {cell.why}"
        )


def beside_a_fit(dataset: Dataset, options: argparse.Namespace) -> dict[str, float]:
    """Run the sweep and one fit at its best cell; print and give what both took."""
    result, cost = swept(dataset, options)
    best = result.best
    print_cells(result)
    whole = result.passes * (result.folds - 1) / result.folds
    print(f"sweep          : {whole:,.0f} passes over all rows, {_took(cost)}", flush=True)
    k = [] if best.k is None else ["--k", str(best.k)]
    words = ["train", *place(dataset, options), "--loss", best.loss, *k, "--C", str(best.C), "--no-certify"]
    fit = command_cost(words)
    passes = fit.answer["passes"]
    print(
        f"fit at the best: {passes:,} passes, relative gap {fit.answer['relative_gap']:.1e}, {_took(fit)}\n"
        f"ratio          : {whole / passes:.1f} in passes, {cost.cpu / fit.cpu:.1f} in CPU s,"
        f" {cost.wall / fit.wall:.1f} in seconds",
        flush=True,
    )
    return {"passes": whole, "fit": passes, "cpu": cost.cpu, "fit_cpu": fit.cpu, "peak": cost.peak.pss}


def _took(cost: CommandCost) -> str:
    return f"{cost.cpu:.1f} CPU s, {cost.wall:.1f} s, {cost.gib:.2f} GiB"


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Run the benchmark."""
    options = read_options(
        __doc__, arguments, folder=SCRATCH, rows=200_000, d=1024, m=100, k=5, folds=5, workers=2,
        C="1e-3:1e2:45", losses="topk_hinge,softmax,topk_entropy", memory_limit="4GiB", rule="race",
    )  # fmt: skip
    return beside_a_fit(relu_store(options.folder, options.rows, options.d, options.m), options)


if __name__ == "__main__":
    main()
