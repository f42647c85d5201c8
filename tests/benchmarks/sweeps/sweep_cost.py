"""Passes of a sweep over C against exhaustive search on the same grid and folds, and the best C of both.

    python -m tests.benchmarks.sweeps.sweep_cost [--data FOLDER] [--sets letter usps] [--k 1] [--topk 1]
        [--quick]

Exhaustive search solves every C on every fold from zero to a relative gap of 1e-3, as scikit-learn's
GridSearchCV would; shown beside it is the same with each C started from the one before.  Both count a pass as
the sweep does: the rounds, and one for the exact values at the end where they are taken.  The bar: at most
40 % of the passes of exhaustive search, and a best C at most one step of the grid away from its own.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from tests.benchmarks.datasets import DATA_DIR, load
from tests.benchmarks.harness import HERE, read_options
from tests.benchmarks.sweeps.same_choice import best_of, one_by_one
from tests.pipeline.small_data import write_dataset
from topline.pipeline.options.sweep import SweepConfig
from topline.pipeline.sweep import sweep
from topline.pipeline.sweep.plan import plan_sweep
from topline.storage.stores import open_store

TOL = 1e-3


def compare(X, y, name, grid, k, topk, folds):
    """Print both searches on one set; give their passes and how many grid steps their best C lie apart."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Path(folder) / "store", create=True)
        write_dataset(store, X, y, np.zeros(len(y), dtype=np.int8), key=name)
        options = {"store": store.url, "C": grid, "k": (k,), "topk": topk, "folds": folds, "tol": TOL}
        began = time.perf_counter()
        hits, passes = one_by_one(plan_sweep(SweepConfig(**options)), TOL)
        seconds = time.perf_counter() - began
        warm = sweep(SweepConfig(**options, rule="none"), HERE)
        found = sweep(SweepConfig(**options), HERE)
    means = {cell.C: rows.mean() for cell, rows in hits.items()}
    grid, best = sorted(means), best_of(hits).C
    apart = abs(grid.index(found.best.C) - grid.index(best))
    print(f"{name}: n {len(y)}, {len(grid)} values of C, {folds} folds, top-{k} hinge, top-{topk} accuracy")
    for cell in found.cells:
        print(
            f"  C {cell.C:<8g} exhaustive {means[cell.C]:.4f}  sweep {cell.mean:.4f} +- {cell.error:.4f}"
            f"  gap {cell.relative_gap:.0e}  passes {cell.passes:6d}  {cell.state}: {cell.why}"
        )
    print(f"  exhaustive, from zero: {passes:6d} passes {seconds:7.1f} s  best C {best:g}")
    print(f"  exhaustive, warm     : {warm.passes:6d} passes {warm.elapsed:7.1f} s  best C {warm.best.C:g}")
    print(
        f"  sweep                : {found.passes:6d} passes {found.elapsed:7.1f} s  best C {found.best.C:g}"
        f" (one standard error: {found.simplest.C:g}); {found.passes / passes:.0%} of the passes from zero,"
        f" {found.passes / warm.passes:.0%} of the warm ones, {apart} steps apart",
        flush=True,
    )
    return {"sweep": found.passes, "exhaustive": passes, "warm": warm.passes, "apart": apart}


def main(arguments=None):
    """Run the benchmark."""
    chosen = read_options(
        __doc__, arguments, data=DATA_DIR, sets=["usps", "letter"], C="1e-3:1e2:11", k=1, topk=1, folds=5,
        quick=False,
    )  # fmt: skip
    names, folds = (["digits"], 3) if chosen.quick else (chosen.sets, chosen.folds)
    grid = SweepConfig(C="0.01:10:4" if chosen.quick else chosen.C).grid()
    found = {}
    for name in names:
        data = load(name, chosen.data, quick=chosen.quick)
        found[name] = compare(data.X, data.y, name, grid, chosen.k, chosen.topk, folds)
    return found


if __name__ == "__main__":
    main()
