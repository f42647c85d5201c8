"""What a pass of dual_ascent costs beside the two bare products in it.

    python -m tests.benchmarks.solvers.pass_cost

One block in one thread, BLAS too. With --threads N the rounds run by turns in one thread and in N, which
changes no number, and so do the bare products; the speed of N threads is the ratio of the medians. A pass
of ascent is n column updates: the seconds of an Ascend over the rows that it visited, times n. A
pass of measuring is an `Evaluate`. After the first rounds, which move nearly every row, each round is
followed by the bare products X W and X^T U of the same shapes and type on the same rows, until the run goes
over to float64. The ratio is that of the medians: a pass of ascent over both products.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from tests.benchmarks.datasets import relu_features
from tests.benchmarks.harness import read_options
from topline.solvers.core.state import IterationRecord, SolverState
from topline.solvers.executors import SerialExecutor
from topline.solvers.losses import MaxHinge
from topline.solvers.operations import Ascend
from topline.solvers.run import solve

#: Rounds before the steady ones.
WARM_ROUNDS = 2


@dataclass(frozen=True)
class Figures:
    """Seconds of each steady round: n column updates, a measurement, and the bare products."""

    ascent: list[float] = field(default_factory=list)
    evaluate: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    product: list[float] = field(default_factory=list)

    @property
    def bare(self) -> float:
        """Median seconds of both products together."""
        return statistics.median(np.add(self.scores, self.product).tolist())

    @property
    def ratio(self) -> float:
        """Median seconds of a pass of ascent over those of the products."""
        return statistics.median(self.ascent) / self.bare


class TimedExecutor(SerialExecutor):
    """One block; notes how long the orders of the last round took, on so many `threads`."""

    ascent = evaluate = 0.0

    def run(self, order: Any) -> Any:
        """Run an order and note its seconds a pass."""
        began = time.perf_counter()
        stats = super().run(order)
        spent = time.perf_counter() - began
        if isinstance(order, Ascend):
            self.ascent = spent * stats.rows / max(stats.visited, 1)
        else:
            self.evaluate = spent
        return stats


def measure(n: int, d: int, m: int, lam_n: float, rounds: int, threads: int = 1) -> dict[int, Figures]:
    """Train for some rounds and time each of them, and the products after it; figures by threads."""
    turns = [1] if threads == 1 else [threads, 1]
    X, y = relu_features(n, d, m)
    U = np.random.default_rng(1).standard_normal((n, m), dtype=np.float32)
    scores, product = np.empty((n, m), np.float32), np.empty((d, m), np.float32)
    found, executor = {number: Figures() for number in turns}, TimedExecutor(threads=1)

    def compare(record: IterationRecord, state: SolverState) -> bool:
        W, figures = state.W.astype(np.float32), found[executor.threads]
        with threadpool_limits(executor.threads, user_api="blas"):
            began = time.perf_counter()
            np.dot(X, W, out=scores)
            halfway = time.perf_counter()
            np.dot(X.T, U, out=product)
            ended = time.perf_counter()
        if state.exact:
            return False  # float64 from here on, at a gap of 1e-5
        if record.round >= WARM_ROUNDS:
            figures.ascent.append(executor.ascent)
            figures.evaluate.append(executor.evaluate)
            figures.scores.append(halfway - began)
            figures.product.append(ended - halfway)
        executor.threads = turns[record.round % len(turns)]
        return record.round < WARM_ROUNDS + rounds * len(turns) - 1

    with executor:
        options = {"tol": 1e-12, "max_passes": 1_000_000, "m": m}
        solve(X, y, MaxHinge(), lam_n / n, executor=executor, callbacks=(compare,), **options)
    return found


def table(figures: Figures) -> str:
    """Lay out every round and the medians."""
    lines = [f"{'':>8}{'n updates':>12}{'measuring':>12}{'X W':>10}{'X^T U':>10}   seconds"]
    columns = (figures.ascent, figures.evaluate, figures.scores, figures.product)
    for number, row in enumerate(zip(*columns, strict=True)):
        lines.append(f"{'round':>6}{number + WARM_ROUNDS:>3}" + "".join(f"{value:>11.4f}" for value in row))
    middle = [statistics.median(column) for column in columns]
    lines.append(f"{'medians':>9}{middle[0]:>11.4f}{middle[1]:>12.4f}{middle[2]:>10.4f}{middle[3]:>10.4f}")
    lines.append(f"a pass of ascent over X W and X^T U: {figures.ratio:.2f}")
    lines.append(f"a pass of measuring over X W: {middle[1] / middle[2]:.2f}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Run the command; exits 1 where the ratio is above --limit."""
    given = read_options(
        __doc__, arguments, n=20_000, d=1024, m=100, lam_n=2.0, rounds=4, threads=1, limit=2.0
    )
    found = measure(given.n, given.d, given.m, given.lam_n, given.rounds, given.threads)
    for threads, figures in found.items():
        print(f"threads: {threads}\n{table(figures)}")
    if given.threads > 1:
        alone, together = (statistics.median(found[number].ascent) for number in (1, given.threads))
        print(f"{given.threads} threads against one: {alone / together:.2f} times as fast")
    return 0 if all(figures.ratio <= given.limit for figures in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
