"""Passes of every method to one gap, on scikit-learn's digits.

    python -m tests.benchmarks.solvers.every_method

A run ends at its gap, or at `--passes`, which a > marks.  `--seconds` adds its time, with its loops compiled
before.  The table is Markdown, as the README has it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_digits

from topline import Softmax, Status, TopKHinge, UnsupportedCombinationError, solve
from topline.solvers.methods import METHODS

#: Column head, loss, smoothing.
PROBLEMS = (
    ("top-3 hinge", TopKHinge(3), 0.0),
    ("smoothed, gamma 0.5", TopKHinge(3), 0.5),
    ("softmax", Softmax(), 0.0),
)


def digits(n: int):
    """Give n rows of unit length with a bias, in float32, and their labels."""
    X, y = load_digits(return_X_y=True)
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    return np.hstack([X, np.ones((len(X), 1))]).astype(np.float32)[:n], y[:n]


def cell(X, y, loss, smoothing: float, method: str, options: argparse.Namespace) -> str:
    """Give what one run took."""
    lam = options.lam_n / len(y)
    try:
        for passes in (3, options.passes):
            result = solve(X, y, loss, lam, smoothing, method, tol=options.tol, max_passes=passes, m=10)
    except UnsupportedCombinationError:
        return "refused"
    short = "" if result.status is Status.SOLVED else "> "
    return f"{short}{result.passes:,}" + (f" ({result.seconds:.2f} s)" if options.seconds else "")


def rows(options: argparse.Namespace) -> Iterator[list[str]]:
    """Give the rows of the table, one a method."""
    X, y = digits(options.rows)
    for method in METHODS:
        yield [f"`{method}`", *(cell(X, y, loss, gamma, method, options) for _, loss, gamma in PROBLEMS)]


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1797)
    parser.add_argument("--lam-n", type=float, default=1.0)
    parser.add_argument("--tol", type=float, default=1e-3)
    parser.add_argument("--passes", type=int, default=2000)
    parser.add_argument("--seconds", action="store_true")
    options = parser.parse_args(arguments)
    head = ["method", *(name for name, _, _ in PROBLEMS)]
    sys.stdout.write(f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n")
    for row in rows(options):
        sys.stdout.write(f"| {' | '.join(row)} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
