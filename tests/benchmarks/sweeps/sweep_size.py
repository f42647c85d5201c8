"""Shared passes of a sweep over rows of ImageNet's shape: memory, and seconds a pass of eight heads.

    python -m tests.benchmarks.sweeps.sweep_size --folder /data/big [--rows 64058] [--d 2048] [--m 1000]
        [--memory-limit 6GiB] [--passes 2]

makes a store of `imagenet_store` once (64,058 rows are a twentieth of ImageNet's) and takes eight values of C
of the top-5 hinge over the rows at the same time, as a sweep in shared passes does with its paths and folds,
each so many passes from A = 0; then one of them alone.  A head's pass multiplies 2 n d m numbers, a reading
serves all heads.  Memory is that of this process at its most (PSS), the store's rows as far as they are kept
included.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace

from tests.benchmarks.harness import SCRATCH, read_options
from tests.benchmarks.scale.imagenet_store import imagenet_store
from tests.benchmarks.tree_memory import TreeMemory
from topline.pipeline.options import ClusterConfig, SweepConfig
from topline.pipeline.sweep.plan import SweepPlan, plan_sweep, shared_memory
from topline.pipeline.sweep.search import PathTask, SharedRunner, open_shared
from topline.solvers.run import compile_jit_functions

#: The costs of the heads.
COSTS = "1e-2:1e1:8"


def taken_together(runner: SharedRunner, plan: SweepPlan, costs: Sequence[float]) -> dict[str, float]:
    """Take a head for each C to the plan's passes, all at the same time; give what that took."""
    path, name = plan.paths[0], f"{len(costs)} heads"
    tasks = [
        PathTask(f"{name}/{C:g}", plan.source(path), path, plan.spec(path), 0, 1, (((C, 1e-6),),), ())
        for C in costs
    ]
    cpu, wall = time.process_time(), time.perf_counter()
    answers = [part for _, parts in runner.run(tasks) for part in parts]
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    passes = sum(part.passes for part in answers)
    longest = max(part.passes for part in answers)
    print(
        f"{len(costs)} heads: {passes} passes of heads in {longest} passes over the rows,"
        f" {cpu:.1f} CPU s and {wall:.1f} s: {cpu / passes:.1f} CPU s a head and pass,"
        f" {wall / longest:.1f} s a pass",
        flush=True,
    )
    return {"passes": passes, "cpu_each": cpu / passes, "wall_pass": wall / longest}


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Run the benchmark."""
    chosen = read_options(
        __doc__, arguments, folder=SCRATCH, rows=64_058, d=2048, m=1000, passes=2, makers=2,
        memory_limit="6GiB",
    )  # fmt: skip
    dataset = imagenet_store(chosen.folder, chosen.rows, chosen.d, chosen.m, chosen.makers)
    config = SweepConfig(
        store=dataset.store.url, dataset=dataset.info.id, C=COSTS, k=(5,), folds=8, max_passes=chosen.passes
    )
    plan = plan_sweep(config)
    path = plan.paths[0]
    compile_jit_functions(replace(plan.spec(path), keep_duals=True), chosen.d, chosen.m)
    print(f"n {chosen.rows:,}, d {chosen.d:,}, m {chosen.m:,}, limit {chosen.memory_limit}", flush=True)
    cluster = ClusterConfig(workers=0, memory_limit=chosen.memory_limit)
    shared = shared_memory(plan, cluster, ours=True)
    with TreeMemory(os.getpid()) as memory, open_shared(plan, shared, None) as runner:
        many = taken_together(runner, plan, config.grid())
        one = taken_together(runner, plan, config.grid()[-1:])
    peak = memory.peak.pss
    print(
        f"eight heads take {many['wall_pass'] / one['wall_pass']:.1f} times the seconds a pass of one;"
        f" {peak / 2**30:.2f} GiB at the most"
    )
    return {"peak": float(peak), "ratio": many["wall_pass"] / one["wall_pass"], **many}


if __name__ == "__main__":
    main()
