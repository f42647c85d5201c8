"""Whether training ends with a proof: random problems of every kind, to a certified gap or out of passes.

    python -m tests.benchmarks.solvers.random_problems --problems 40 --seed 0

Kind, shape, precision, loss and C of a problem follow from the seed and its number alone.  A row says how the
run ended, its passes, its relative gap, and P by code of this file at the W that came back; a ! marks a P
that is not the one reported.  Counts by kind close the table: problems, those solved, the most passes of one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from tests.benchmarks.harness import print_head, print_row, read_options
from topline import (
    MaxHinge,
    OneVsAll,
    SerialExecutor,
    Softmax,
    SolveResult,
    Status,
    StructuredHinge,
    TopKHinge,
    solve,
)

#: P recomputed may differ from the one reported by this share of the sizes that enter it.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Drawn:
    """A problem: features, labels, loss and C."""

    kind: str
    X: Any
    y: np.ndarray
    loss: Any
    C: float

    @property
    def m(self) -> int:
        """Classes."""
        return int(self.y.max()) + 1

    @property
    def lam(self) -> float:
        """Weight of the regulariser."""
        return 1.0 / (len(self.y) * self.C)

    def primal(self, W: np.ndarray) -> tuple[float, float]:
        """Return P at W by definition, in float64, and what it may be off by."""
        scores = np.asarray(self.X.astype(np.float64) @ W)
        sizes = np.asarray(abs(self.X).astype(np.float64) @ np.abs(W))
        norm = 0.5 * self.lam * float(np.sum(W * W))
        return norm + float(losses_of(self.loss, scores, self.y).mean()), _ROUNDING * (norm + sizes.max())


def losses_of(loss: Any, scores: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the loss of every row of scores (n, m), by its definition."""
    rows = np.arange(len(y))
    own = scores[rows, y][:, None]
    if isinstance(loss, OneVsAll):
        signs = np.ones_like(scores)
        signs[rows, y] = -1.0
        return np.maximum(0.0, 1.0 + signs * scores).sum(axis=1)
    if isinstance(loss, Softmax):
        top = scores.max(axis=1, keepdims=True)
        return (np.log(np.exp(scores - top).sum(axis=1, keepdims=True)) + top - own)[:, 0]
    if isinstance(loss, StructuredHinge):
        return np.maximum(0.0, (np.asarray(loss.margins)[y] + scores - own).max(axis=1))
    behind = 1.0 + scores - own
    behind[rows, y] = 0.0
    k = loss.k if isinstance(loss, TopKHinge) else 1
    return np.maximum(0.0, np.sort(behind, axis=1)[:, -k:].mean(axis=1))


def clusters(rng: np.random.Generator, n: int, d: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows of m classes that overlap more or less, with correlated features."""
    y = np.concatenate([np.arange(m), rng.integers(m, size=n - m)])
    noise = 10.0 ** rng.uniform(-0.5, 0.7)
    mix = rng.standard_normal((d, d)) / np.sqrt(d)
    return (rng.standard_normal((m, d))[y] + noise * rng.standard_normal((n, d))) @ mix, y


def unit_rows(rng: np.random.Generator, X: np.ndarray, y: np.ndarray) -> tuple[Any, np.ndarray]:
    """Return rows of length 1."""
    return X / np.linalg.norm(X, axis=1, keepdims=True), y


def standardised(rng: np.random.Generator, X: np.ndarray, y: np.ndarray) -> tuple[Any, np.ndarray]:
    """Return columns with mean 0 and deviation 1."""
    return (X - X.mean(axis=0)) / X.std(axis=0), y


def uneven_columns(rng: np.random.Generator, X: np.ndarray, y: np.ndarray) -> tuple[Any, np.ndarray]:
    """Return columns of sizes from 1e-4 to 1e4."""
    return X * 10.0 ** rng.uniform(-4.0, 4.0, X.shape[1]), y


def heavy_tails(rng: np.random.Generator, X: np.ndarray, y: np.ndarray) -> tuple[Any, np.ndarray]:
    """Return features with noise of Cauchy's distribution."""
    return X + rng.standard_cauchy(X.shape), y


def duplicates(rng: np.random.Generator, X: np.ndarray, y: np.ndarray) -> tuple[Any, np.ndarray]:
    """Return rows that occur some ten times each."""
    copies = np.concatenate([np.arange(y.max() + 1), rng.integers(max(len(y) // 10, 1), size=len(y))])
    return X[copies[: len(y)]], y[copies[: len(y)]]


def contradicting(rng: np.random.Generator, X: np.ndarray, y: np.ndarray) -> tuple[Any, np.ndarray]:
    """Return rows that occur some four times each, with a label of their own each time."""
    copies = rng.integers(max(len(y) // 4, 1), size=len(y))
    return X[copies], y


def sparse_counts(rng: np.random.Generator, X: np.ndarray, y: np.ndarray) -> tuple[Any, np.ndarray]:
    """Return counts of rare words, whose rates depend on the class."""
    rates = 0.3 * rng.gamma(0.3, 1.0, (y.max() + 1, X.shape[1]))[y]
    return csr_matrix(rng.poisson(rates).astype(X.dtype)), y


KINDS: Mapping[str, Callable[..., tuple[Any, np.ndarray]]] = {
    "unit rows": unit_rows,
    "standardised": standardised,
    "uneven columns": uneven_columns,
    "heavy tails": heavy_tails,
    "duplicates": duplicates,
    "contradicting labels": contradicting,
    "sparse counts": sparse_counts,
}


def loss_for(rng: np.random.Generator, m: int) -> Any:
    """Draw a loss for m classes."""
    margins = rng.uniform(0.2, 2.0, (m, m))
    np.fill_diagonal(margins, 0.0)
    losses = MaxHinge(), TopKHinge(min(5, m)), Softmax(), StructuredHinge(margins), OneVsAll("hinge")
    return losses[int(rng.integers(len(losses)))]


def drawn(seed: int, number: int) -> Drawn:
    """Draw a problem by its number."""
    rng = np.random.default_rng((seed, number))
    kind = list(KINDS)[number % len(KINDS)]
    m = int(rng.integers(2, 31))
    n = int(max(10.0 ** rng.uniform(1.8, 3.4), 2 * m))
    d = int(10.0 ** rng.uniform(0.4, 2.2))
    X, y = KINDS[kind](rng, *clusters(rng, n, d, m))
    X = X.astype(rng.choice([np.float32, np.float64]))
    return Drawn(kind, X, y, loss_for(rng, m), 10.0 ** rng.uniform(-3.0, 7.0))


def solved(problem: Drawn, options: argparse.Namespace) -> SolveResult:
    """Train to the gap or the budget."""
    with SerialExecutor(blocks=min(options.blocks, len(problem.y))) as executor:
        return solve(
            problem.X, problem.y, problem.loss, problem.lam, method=options.method, tol=options.tol,
            max_passes=options.max_passes, executor=executor,
        )  # fmt: skip


def row(problem: Drawn, result: SolveResult) -> list[object]:
    """Lay a run out."""
    n, d = problem.X.shape
    shape = f"{n} x {d}, {problem.m}, {problem.X.dtype}"
    primal, slack = problem.primal(result.W)
    wrong = "" if abs(primal - result.primal) <= slack else " !"
    return [
        problem.kind, shape, problem.loss.name, f"{problem.C:.1e}", result.status.name, result.method,
        f"{result.passes:,}", f"{result.relative_gap:.1e}", f"{primal:.6g}{wrong}",
    ]  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """Print a row a problem as Markdown, and the counts."""
    options = read_options(
        __doc__, arguments, problems=40, first=0, seed=0, max_passes=1_000, tol=1e-3, blocks=1, method="auto"
    )
    print_head("number", "kind", "n x d, m", "loss", "C", "status", "method", "passes", "gap", "P")
    runs: dict[str, list[SolveResult]] = {kind: [] for kind in KINDS}
    for number in range(options.first, options.first + options.problems):
        problem = drawn(options.seed, number)
        result = solved(problem, options)
        runs[problem.kind].append(result)
        print_row(number, *row(problem, result))
    print()
    print_head("kind", "problems", "solved", "most passes")
    runs["all"] = [run for some in runs.values() for run in some]
    for kind, some in runs.items():
        if some:
            ended = sum(run.status is Status.SOLVED for run in some)
            print_row(kind, len(some), ended, f"{max(run.passes for run in some):,}")


if __name__ == "__main__":
    main()
