"""What Dask costs: the same solve over two plain processes with pipes and over two Dask workers.

    python -m tests.benchmarks.scale.dask_overhead [--n 40000] [--d 1024] [--m 100] [--repeats 5]

Two blocks, one in each process of one thread, in memory; every method runs the same rounds to the same W on
both, one after the other and again, so that what else the machine does falls on both.  The plain processes
get the pickled order through a pipe and send their sums back the same way: the least that can be done.
Printed are seconds per pass, without each run's first round, and the ratio, beside the same blocks on two
threads and one after the other in one process.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from threadpoolctl import threadpool_limits

from tests.benchmarks.datasets import relu_features
from topline.pipeline.cluster import DaskExecutor
from topline.pipeline.cluster.connection import THREAD_VARIABLES, open_cluster
from topline.pipeline.options.train import ClusterConfig
from topline.solvers.blocks.block import Block, RunSpec
from topline.solvers.core.answers import leaf, tree_total
from topline.solvers.core.dual_points import PendingStep
from topline.solvers.core.problem import Problem
from topline.solvers.core.rows import RowSource
from topline.solvers.core.state import Traffic
from topline.solvers.executors import DualRows, Executor, SerialExecutor, ThreadExecutor, block_bounds
from topline.solvers.losses import TopKHinge
from topline.solvers.run import solve
from topline.solvers.typing import Float64Array, IntArray

METHODS = ("fw", "dual_ascent")


class PlainProcesses:
    """An executor of one block in each of some processes, over pipes, and of nothing else."""

    in_process = False
    dual_bytes: int | None = None

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        kept = {name: os.environ.get(name) for name in THREAD_VARIABLES}
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
        for _ in range(count):
            ours, theirs = context.Pipe()
            self._processes.append(context.Process(target=serve_block, args=(theirs,), daemon=True))
            self._processes[-1].start()
            self._pipes.append(ours)
        for name, value in kept.items():
            del os.environ[name]
            os.environ.update({} if value is None else {name: value})

    sends = True

    @property
    def workers(self) -> int:
        """How many blocks run at the same time."""
        return len(self._pipes)

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self._pipes)

    def bind(
        self,
        problem: Problem,
        X: RowSource,
        y: IntArray,
        *,
        keep_duals: bool,
        weights: Float64Array | None = None,
    ) -> None:
        """Send every process its rows."""
        cuts = itertools.pairwise(block_bounds(problem.n, self.blocks))
        for index, ((start, stop), pipe) in enumerate(zip(cuts, self._pipes, strict=True)):
            share = None if weights is None else weights[start:stop]
            spec = RunSpec(problem, X[start:stop], y[start:stop], share, keep_duals, first=start)
            pipe.send((spec, index))
        for pipe in self._pipes:
            pipe.recv()

    def run(self, order: Any) -> Any:
        """Run an order on every block and give the sum."""
        for pipe in self._pipes:
            pipe.send(order)
        parts = [(leaf(index), pipe.recv()) for index, pipe in enumerate(self._pipes)]
        return tree_total(parts, self.blocks)

    def duals(self, commit: PendingStep | None = None) -> Iterator[DualRows]:
        """Nothing here asks for A."""
        raise NotImplementedError

    def map_duals(self, *_: Any, **__: Any) -> Any:
        """Nothing here saves A."""
        raise NotImplementedError

    def load_duals(self, duals: Iterable[DualRows]) -> None:
        """Nothing here sets A."""
        raise NotImplementedError

    def traffic(self) -> Traffic:
        """Count nothing."""
        return Traffic()

    def close(self) -> None:
        """End the processes."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.send(None)
            process.join()


def serve_block(pipe: Connection) -> None:
    """Make the blocks and run the orders that come."""
    block = None
    with threadpool_limits(1):
        while (message := pipe.recv()) is not None:
            if isinstance(message, tuple):
                block = Block(*message)
                pipe.send(None)
            elif block is not None:
                pipe.send(block.run(message))


@dataclass(frozen=True)
class Costs:
    """Seconds per pass of every repeat, by executor, of one method."""

    seconds: Mapping[str, Sequence[float]]

    @property
    def ratio(self) -> float:
        """Median over repeats of Dask's seconds over those of the plain processes just before."""
        pairs = zip(self.seconds["dask"], self.seconds["plain"], strict=True)
        return statistics.median(dask / plain for dask, plain in pairs)

    def median(self, name: str) -> float:
        """Give the median of one executor."""
        return statistics.median(self.seconds[name])


def compare(options: argparse.Namespace) -> dict[str, Costs]:
    """Solve with every method on every executor, again and again."""
    X, y = relu_features(options.n, options.d, options.m)
    seconds: dict[str, dict[str, list[float]]] = {method: {} for method in options.methods}
    with ExitStack() as stack:
        client = stack.enter_context(open_cluster(ClusterConfig(workers=2, dashboard=False)))
        assert client is not None
        executors: dict[str, Any] = {
            "one after the other": SerialExecutor(blocks=2),
            "two threads": ThreadExecutor(2, blocks=2),
            "plain": PlainProcesses(2),
            "dask": DaskExecutor(client, blocks=2),
        }
        for executor in executors.values():
            stack.callback(executor.close)
        for repeat in range(-1, options.repeats):  # the first time, kernels are loaded and memory is touched
            for method, (name, executor) in itertools.product(options.methods, executors.items()):
                spent = seconds_per_pass(X, y, method, executor, options)
                if repeat >= 0:
                    seconds[method].setdefault(name, []).append(spent)
    return {method: Costs(found) for method, found in seconds.items()}


def seconds_per_pass(X: Any, y: Any, method: str, executor: Executor, options: argparse.Namespace) -> float:
    """Run some rounds; give the seconds of a pass over all of them but the first."""
    result = solve(
        X,
        y,
        TopKHinge(5),
        1.0 / (len(y) * options.C),
        method=method,
        tol=1e-12,
        max_passes=options.passes,
        executor=executor,
        m=options.m,
    )
    first, last = result.history[0], result.history[-1]
    return (last.seconds - first.seconds) / (last.passes - first.passes)


def table(costs: Mapping[str, Costs]) -> str:
    """Lay out the medians and the ratio of each method."""
    lines = []
    for method, found in costs.items():
        shown = ", ".join(f"{name} {found.median(name) * 1e3:.2f}" for name in found.seconds)
        lines.append(f"{method}: milliseconds per pass: {shown}; dask over plain: {found.ratio:.3f}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; exits 1 where a ratio is above --limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=40_000)
    parser.add_argument("--d", type=int, default=1024)
    parser.add_argument("--m", type=int, default=100)
    parser.add_argument("--C", type=float, default=1.0)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--passes", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--limit", type=float, default=1.10)
    options = parser.parse_args(arguments)
    costs = compare(options)
    print(table(costs))
    return 0 if max(found.ratio for found in costs.values()) <= options.limit else 1


if __name__ == "__main__":
    sys.exit(main())
