"""Whether a sweep chooses what exhaustive search chooses, and how firmly exhaustive search itself chooses.

    python -m tests.benchmarks.sweeps.same_choice [--folder FOLDER] [--rows 3000] [--d 256] [--m 20] [--k 3]
        [--C 1e-3:1e2:45] [--losses topk_hinge,softmax,topk_entropy] [--samples 6] [--rule race]

For each of some seeds a sample of the rows of one dataset, clustered rows behind a ReLU, is searched three
ways: by `topline sweep --rows ROWS --seed SEED`, and by exhaustive search, which solves every cell on every
fold from zero, to a relative gap of 1e-3 and to one of 1e-4.  All three see the same rows in the same folds.

Printed are the cells that they choose and what they take; by how much a choice is below that of the search to
1e-4, in the accuracies of that search; and the accuracy of a model that is trained at the choice on the whole
sample, on 20,000 rows that no search has seen.  In the end the choices of the sweep and of the search to 1e-3
are compared with those of the search to 1e-4: the second says how firm an exhaustive choice itself is.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.harness import SCRATCH, read_options
from tests.benchmarks.sweeps.stored_sweep import relu_store
from tests.benchmarks.tree_memory import command_cost
from topline.pipeline.options import Cell, SweepConfig
from topline.pipeline.rows import TrainingRows
from topline.pipeline.sweep import SweepResult
from topline.pipeline.sweep.plan import SweepPlan, fold_data, plan_sweep, stratified_sample, variant_of
from topline.solvers.core.held_out import count_hits
from topline.solvers.executors import SerialExecutor
from topline.solvers.run import solve
from topline.storage.datasets import Dataset
from topline.storage.records import from_fields

#: Rows that no search sees.
UNSEEN = 20_000
#: The gap of the search that others are held against.
FINE = 1e-4
SWEEP, COARSE, EXACT = "sweep", "exhaustive", f"exhaustive to {FINE:g}"


@dataclass(frozen=True)
class Choice:
    """What one search of a sample chooses and takes, and how good that is.

    `behind` is by how much it is below the best cell of the exact search, a share of the rows; `errors` is
    that in standard errors of the paired difference over the rows.
    """

    cell: Cell
    passes: int
    seconds: float
    behind: float
    errors: float
    unseen: float


def one_by_one(plan: SweepPlan, tol: float) -> tuple[dict[Cell, NDArray[np.bool_]], int]:
    """Solve every cell on every fold from zero; give which rows of it are hit (n,), and all passes."""
    passes, config = 0, plan.config
    hits: dict[Cell, list[NDArray[np.bool_]]] = {cell: [] for cell in plan.cells}
    for path in plan.paths:
        for fold in range(config.folds):
            data = fold_data(plan.source(path), fold)
            for C in config.grid():
                found = solve(
                    data.X, data.y, plan.spec(path).loss, 1.0 / (len(data.y) * C), tol=tol, m=data.m,
                    max_passes=config.max_passes, executor=SerialExecutor(),
                )  # fmt: skip
                passes += found.passes + 1
                # A tie counts against the row.
                scores = data.held_out @ found.W
                own = scores[np.arange(len(data.held_out_y)), data.held_out_y]
                hits[Cell(variant_of(path), C)].append((scores >= own[:, None]).sum(axis=1) <= plan.topk)
    return {cell: np.concatenate(parts) for cell, parts in hits.items()}, passes


def best_of(hits: Mapping[Cell, NDArray[np.bool_]]) -> Cell:
    """Return the cell with the most hits, of equals the smallest C."""
    return max(hits, key=lambda cell: (hits[cell].sum(), -cell.C))


def choices(dataset: Dataset, options: argparse.Namespace, seed: int) -> dict[str, Choice]:
    """Search one sample in all three ways."""
    config = SweepConfig(
        store=dataset.store.url, dataset=dataset.info.id, C=options.C, loss=options.losses, k=(options.k,),
        topk=1, folds=options.folds, rows=options.rows, seed=seed,
    )  # fmt: skip
    plan = plan_sweep(config)
    cost = command_cost(
        [
            "sweep", "--store", dataset.store.url, "--dataset", dataset.info.id, "--C", options.C,
            "--loss", options.losses, "--k", str(options.k), "--topk", "1", "--folds", str(options.folds),
            "--rows", str(options.rows), "--seed", str(seed), "--rule", options.rule, "--workers", "0",
        ]
    )  # fmt: skip
    swept = from_fields(SweepResult, cost.answer, "the answer")
    found = {SWEEP: (Cell(swept.best.variant, swept.best.C), swept.passes, cost.cpu)}
    for name, tol in ((COARSE, config.tol), (EXACT, FINE)):
        began = time.process_time()
        hits, passes = one_by_one(plan, tol)
        found[name] = best_of(hits), passes, time.process_time() - began
    top = hits[best_of(hits)]
    return {
        name: Choice(cell, passes, seconds, *_behind(top, hits[cell]), _unseen(dataset, plan, cell))
        for name, (cell, passes, seconds) in found.items()
    }


def _behind(best: NDArray[np.bool_], other: NDArray[np.bool_]) -> tuple[float, float]:
    """Return by what share of the rows hits are fewer, and in standard errors of the paired difference."""
    difference = best.astype(np.float64) - other
    error = float(difference.std(ddof=1)) / np.sqrt(len(difference))
    mean = float(difference.mean())
    return mean, mean / error if error else 0.0


def _unseen(dataset: Dataset, plan: SweepPlan, cell: Cell) -> float:
    """Return the accuracy of a cell's model of the whole sample on the rows that are not in it."""
    read = TrainingRows(dataset)
    X, y = np.concatenate([tile for _, _, tile in read.tiles()]), read.labels()
    rows = stratified_sample(y, plan.config.rows, plan.config.seed)
    loss = next(plan.spec(path).loss for path in plan.paths if variant_of(path) == cell.variant)
    lam = 1.0 / (len(rows) * cell.C)
    W = solve(X[rows], y[rows], loss, lam, tol=plan.config.tol, m=dataset.info.m).W
    others = np.ones(len(y), dtype=np.bool_)
    others[rows] = False
    return count_hits(X[others], y[others], W, plan.topk, 0.0).hits / int(others.sum())


def agreement(found: Sequence[Mapping[str, Choice]], name: str, grid: Sequence[float]) -> str:
    """Return how the choices of a search compare with those of the exact one, in a sentence."""
    pairs = [(one[name], one[EXACT]) for one in found]
    same = sum(mine.cell == exact.cell for mine, exact in pairs)
    losses = sum(mine.cell.variant == exact.cell.variant for mine, exact in pairs)
    apart = [abs(grid.index(mine.cell.C) - grid.index(exact.cell.C)) for mine, exact in pairs]
    unseen = [mine.unseen - exact.unseen for mine, exact in pairs]
    error = float(np.std(unseen, ddof=1)) / np.sqrt(len(unseen)) if len(unseen) > 1 else float("nan")
    behind = float(np.mean([mine.behind for mine, _ in pairs]))
    errors = max(mine.errors for mine, _ in pairs)
    return (
        f"{name}: the same cell {same} of {len(pairs)} times, the same loss {losses}; {np.mean(apart):.1f}"
        f" values of C apart in the mean, {max(apart)} at most; {behind:.4f} below in the mean, {errors:.2f}"
        f" paired standard errors at most; on unseen rows {np.mean(unseen):+.4f} +- {error:.4f}"
    )


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Choice]]:
    """Print the choices of each sample, and how they agree."""
    options = read_options(
        __doc__, arguments, folder=SCRATCH, rows=3000, d=256, m=20, k=3, folds=5, samples=6, unseen=UNSEEN,
        C="1e-3:1e2:45", losses="topk_hinge,softmax,topk_entropy", rule="race",
    )  # fmt: skip
    found: list[dict[str, Choice]] = []
    dataset = relu_store(options.folder, options.rows + options.unseen, options.d, options.m)
    for seed in range(options.samples):
        found.append(choices(dataset, options, seed))
        print(f"sample {seed}")
        for name, one in found[-1].items():
            print(
                f"  {name:<20}: {one.cell.variant.name}, C {one.cell.C:g}; {one.passes:,} passes,"
                f" {one.seconds:.0f} CPU s; {one.behind:.4f} below, {one.errors:.2f} paired standard"
                f" errors; unseen rows {one.unseen:.4f}",
                flush=True,
            )
    grid = SweepConfig(store="-", dataset="-", C=options.C).grid()
    for name in (SWEEP, COARSE):
        print(agreement(found, name, grid))
    return found


if __name__ == "__main__":
    main()
