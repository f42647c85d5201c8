"""A whole sweep against one fit at the C that it chooses: passes, CPU seconds and seconds of both.

    python -m tests.benchmarks.sweeps.shared_sweep [--rows 10000] [--d 256] [--m 20] [--set NAME]
        [--C 1e-3:1e2:45] [--losses topk_hinge,softmax,topk_entropy] [--k 3] [--folds 5] [--shared]
        [--memory-limit 4GiB] [--one-by-one]

Both run in this process, on a store of synthetic rows or of the public set that `--set` names, to the
relative gap 1e-3 at the latest; the fit is that of `topline train` from zero on all training rows.
`--shared` takes shared passes even where rows fit into every process.  `--one-by-one` also solves every cell
on every fold from zero, as exhaustive search does, and says how good the choice is by its accuracies.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import numpy as np

from tests.benchmarks.datasets import DATA_DIR, load, relu_features
from tests.benchmarks.harness import read_options
from tests.benchmarks.sweeps import same_choice
from tests.benchmarks.sweeps.stored_sweep import print_cells
from tests.pipeline.small_data import write_dataset
from topline.pipeline.options import Cell, ClusterConfig, SweepConfig, TrainConfig
from topline.pipeline.sweep import plan as memory
from topline.pipeline.sweep import search
from topline.pipeline.sweep.plan import plan_sweep
from topline.pipeline.training import train
from topline.storage.stores import open_store


class Clock:
    """CPU seconds of this process and seconds since it was made."""

    def __init__(self):
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def read(self):
        """Give both."""
        return time.process_time() - self._cpu, time.perf_counter() - self._wall


def swept(config, cluster, *, shared):
    """Run the sweep, in shared passes if asked for."""
    with ExitStack() as stack:
        if shared:
            stack.enter_context(mock.patch.object(memory, "fits_every_process", return_value=False))
        clock = Clock()
        return search.sweep(config, cluster), clock.read()


def one_by_one(config, best):
    """Solve all cells from zero, print what that costs, and give how far the best is above the choice."""
    clock = Clock()
    hits, passes = same_choice.one_by_one(plan_sweep(config), config.tol)
    means = {cell: rows.mean() for cell, rows in hits.items()}
    cpu, _ = clock.read()
    top = same_choice.best_of(hits)
    lost = means[top] - means[Cell(best.variant, best.C)]
    print(
        f"one by one     : {len(means)} cells, {passes:,} passes, {cpu:.1f} CPU s;"
        f" best {top.variant.name} C {top.C:g} {means[top]:.4f}, the sweep's choice is {lost:.4f} below it"
    )
    return {"one_by_one": passes, "lost": lost, "cpu_one_by_one": cpu}


def main(arguments=None):
    """Run the benchmark."""
    chosen = read_options(
        __doc__, arguments, rows=10_000, d=256, m=20, k=3, folds=5, set=str, C="1e-3:1e2:45",
        losses="topk_hinge,softmax,topk_entropy", memory_limit=str, shared=False, one_by_one=False,
    )  # fmt: skip
    cluster = ClusterConfig(workers=0, memory_limit=chosen.memory_limit)
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Path(folder) / "store", create=True)
        if chosen.set is None:
            X, y = relu_features(chosen.rows, chosen.d, chosen.m)
        else:
            data = load(chosen.set, DATA_DIR)
            X, y = data.X, data.y
        write_dataset(store, X, y.astype(np.int32), np.zeros(len(y), dtype=np.int8))
        del X
        config = SweepConfig(
            store=store.url, C=chosen.C, loss=chosen.losses, k=(chosen.k,), topk=1, folds=chosen.folds
        )
        result, (cpu, wall) = swept(config, cluster, shared=chosen.shared)
        best = result.best
        clock = Clock()
        fit = train(TrainConfig(store=store.url, loss=best.loss, k=best.k, C=best.C, certify=False), cluster)
        fit_cpu, fit_wall = clock.read()
        extra = one_by_one(config, best) if chosen.one_by_one else {}
    whole = result.passes * (chosen.folds - 1) / chosen.folds
    print_cells(result)
    print(f"sweep          : {whole:,.0f} passes over all rows, {cpu:.1f} CPU s, {wall:.1f} s")
    print(f"fit at the best: {fit.passes:,} passes, {fit_cpu:.1f} CPU s, {fit_wall:.1f} s")
    print(
        f"ratio          : {whole / fit.passes:.1f} in passes, {cpu / fit_cpu:.1f} in CPU s,"
        f" {wall / fit_wall:.1f} in seconds",
        flush=True,
    )
    return {"passes": whole, "fit": fit.passes, "cpu": cpu, "fit_cpu": fit_cpu, **extra}


if __name__ == "__main__":
    main()
