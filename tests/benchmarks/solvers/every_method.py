"""Passes of every method to one gap, on scikit-learn's digits.

    python -m tests.benchmarks.solvers.every_method

A run ends at its gap, or at `--passes`, which a > marks.  `--seconds` adds its time, with its loops compiled
before.  The table is Markdown, as the README has it.
"""

from __future__ import annotations

import argparse

import numpy as np
from sklearn.datasets import load_digits

from tests.benchmarks.harness import print_head, print_row, read_options
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


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    options = read_options(__doc__, arguments, rows=1797, lam_n=1.0, tol=1e-3, passes=2000, seconds=False)
    print_head("method", *(name for name, _, _ in PROBLEMS))
    X, y = digits(options.rows)
    for method in METHODS:
        print_row(f"`{method}`", *(cell(X, y, loss, gamma, method, options) for _, loss, gamma in PROBLEMS))


if __name__ == "__main__":
    main()
