"""What `auto` costs beside the best fixed method: CPU seconds on problems that nobody has seen.

    python -m tests.benchmarks.solvers.regret --seed 0

Kind, shape, loss and lam n of a problem follow from the seed and its number alone.  Every method trains to
the same certified gap in one thread, BLAS too, on one block, by turns `--turns` times, or more often if they
are short; the least of its CPU seconds counts, for the first turn may compile.  The regret is that of auto
over the best fixed one; its median and the worst close the table.  `--first` continues an interrupted one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from tests.benchmarks.harness import print_head, print_row, read_options
from tests.benchmarks.solvers.random_problems import Drawn, clusters, standardised, unit_rows
from topline import (
    MaxHinge,
    SerialExecutor,
    Softmax,
    SolveResult,
    Status,
    TopKEntropy,
    TopKHinge,
    solve,
)

#: Methods that are fixed, for smooth losses and for hinges.
_SMOOTH, _HINGE = ("lbfgs", "dual_ascent", "newton"), ("dual_ascent", "newton")
AUTO = "auto"
#: CPU seconds of all turns below which there are more, up to so many: those of a short run are noisy.
_SHORT, _MOST_TURNS = 2.0, 10


def embeddings(rng: np.random.Generator, n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw unit rows with correlated directions, a few per cent of them under a wrong label."""
    d, y = int(10.0 ** rng.uniform(2.0, 2.9)), labels(rng, n, m)
    X = rng.standard_normal((m, d))[y] + 10.0 ** rng.uniform(-0.3, 0.5) * rng.standard_normal((n, d))
    X = (X / np.sqrt(1.0 + np.arange(d))) @ np.linalg.qr(rng.standard_normal((d, d)))[0]
    wrong = m + np.flatnonzero(rng.random(n - m) < 0.04)  # every class keeps a row
    y[wrong] = rng.integers(m, size=len(wrong))
    return unit_rows(rng, X, y)


def short_rows(rng: np.random.Generator, n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw standardised rows of few features, whose classes overlap."""
    return standardised(rng, *clusters(rng, n, int(10.0 ** rng.uniform(0.8, 1.8)), m))


def signals(rng: np.random.Generator, n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw few rows of many features which are sums of some waves, between -1 and 1 or standardised."""
    n, m, d = n // 10 + 1, min(m, n // 60 + 5), int(10.0 ** rng.uniform(2.4, 3.2))
    y, waves = labels(rng, n, m), int(rng.integers(20, 120))
    sizes = 1.0 / (1.0 + np.arange(waves))
    shapes = np.cos(np.outer(np.arange(waves), np.linspace(0.0, np.pi, d)))
    parts = rng.standard_normal((m, waves))[y] + 10.0 ** rng.uniform(-0.3, 0.3) * rng.standard_normal(
        (n, waves)
    )
    X = (parts * sizes) @ shapes + 0.05 * rng.standard_normal((n, d))
    return standardised(rng, X, y) if rng.random() < 0.5 else (X / np.abs(X).max(), y)


def activations(rng: np.random.Generator, n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw unit rows of positive features, as behind a ReLU: all have much in common."""
    d, y = int(10.0 ** rng.uniform(2.0, 2.9)), labels(rng, n, m)
    X = rng.standard_normal((n, d)) + 10.0 ** rng.uniform(-1.0, 0.0) * rng.standard_normal((m, d))[y]
    return unit_rows(rng, np.maximum(X, 0.0), y)


def labels(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    """Draw n labels of which each of m occurs."""
    return np.concatenate([np.arange(m), rng.integers(m, size=n - m)])


_KINDS = embeddings, short_rows, signals, short_rows, activations


def drawn(seed: int, number: int, rows: int) -> Drawn:
    """Draw a problem of at most so many rows by its number: a kind after the other."""
    rng, kind = np.random.default_rng((seed, number)), _KINDS[number % len(_KINDS)]
    n, m = int(rows * 10.0 ** rng.uniform(-1.0, 0.0)), int(10.0 ** rng.uniform(0.7, 2.2))
    X, y = kind(rng, n, min(m, n // 2))
    losses = Softmax(), Softmax(), TopKEntropy(3), MaxHinge(), TopKHinge(3)
    loss, C = losses[int(rng.integers(len(losses)))], 10.0 ** rng.uniform(-2.0, 1.5)
    return Drawn(kind.__name__.replace("_", " "), X.astype(np.float32), y, loss, C)


@dataclass(frozen=True)
class Outcome:
    """CPU seconds of each method that ended solved, auto's as well, and which one auto ended with."""

    seconds: Mapping[str, float]
    ended_with: str

    @property
    def best(self) -> str:
        """The fastest fixed method; auto where none of them ended."""
        fixed = {name: seconds for name, seconds in self.seconds.items() if name != AUTO}
        return min(fixed, key=fixed.__getitem__, default=AUTO)

    @property
    def regret(self) -> float:
        """Seconds of auto over those of the best fixed method; inf if auto alone did not, 1 if none ended."""
        if not self.seconds:
            return 1.0
        return self.seconds.get(AUTO, np.inf) / self.seconds.get(self.best, np.inf)


def timed(problem: Drawn, method: str, options: argparse.Namespace) -> tuple[float, SolveResult]:
    """Return the CPU seconds of a training by one method, and its result."""
    with SerialExecutor(threads=1) as executor, threadpool_limits(1):
        began = time.process_time()
        result = solve(
            problem.X, problem.y, problem.loss, problem.lam, method=method, tol=options.tol,
            max_passes=options.max_passes, executor=executor,
        )  # fmt: skip
        return time.process_time() - began, result


def outcome(problem: Drawn, options: argparse.Namespace) -> Outcome:
    """Train by every method in turns."""
    seconds: dict[str, float] = {}
    ended_with = ""
    methods = AUTO, *(_SMOOTH if problem.loss.form(problem.m).smooth else _HINGE)
    began, turn = time.process_time(), 0
    while turn < options.turns or (turn < _MOST_TURNS and time.process_time() - began < _SHORT):
        turn += 1
        for method in methods:
            spent, result = timed(problem, method, options)
            if result.status is Status.SOLVED:
                seconds[method] = min(spent, seconds.get(method, np.inf))
            ended_with = result.method if method == AUTO else ended_with
    return Outcome(seconds, ended_with)


def row(problem: Drawn, found: Outcome) -> list[object]:
    """Lay a problem out."""
    n, d = problem.X.shape
    fixed = ", ".join(f"{name} {value:.2f}" for name, value in found.seconds.items() if name != AUTO)
    auto = f"{found.seconds.get(AUTO, np.inf):.2f} ({found.ended_with})"
    name = f"{problem.kind} {n} x {d}, {problem.m}"
    return [name, problem.loss.name, f"{1.0 / problem.C:.2g}", auto, fixed, f"{found.regret:.2f}"]


def main(arguments: list[str] | None = None) -> list[float]:
    """Print the table as Markdown and return the regrets."""
    options = read_options(
        __doc__, arguments, seed=0, first=0, problems=30, rows=20_000, tol=1e-3, max_passes=400, turns=2
    )
    print_head("number", "problem", "loss", "lam n", "auto", "fixed", "regret")
    regrets: list[float] = []
    for number in range(options.first, options.problems):
        problem = drawn(options.seed, number, options.rows)
        found = outcome(problem, options)
        regrets.append(found.regret)
        print_row(number, *row(problem, found))
    print(f"\nmedian {statistics.median(regrets):.2f}, worst {max(regrets):.2f}")
    return regrets


if __name__ == "__main__":
    main()
