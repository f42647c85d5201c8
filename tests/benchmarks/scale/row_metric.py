"""Passes of L-BFGS with its metrics and without: python -m tests.benchmarks.scale.row_metric.

Rows behind a ReLU, as `imagenet_store` makes them: of unit norm or standardised, in classes of one size or of
a long tail, to a certified relative gap of 1e-3; then public sets whose classes come apart, where the metric
of all rows is let go and that of the classes takes its place.  CPU seconds are those of all threads.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np

from tests.benchmarks.datasets import DATA_DIR
from tests.benchmarks.harness import read_options, sets_there
from tests.benchmarks.scale.imagenet_store import DIRECTIONS, THRESHOLD, class_means, labels_of
from topline import OneVsAll, Softmax, Status, TopKEntropy, solve
from topline.solvers.methods.quasi_newton import metrics

LOSSES = (Softmax(), TopKEntropy(5), OneVsAll("logistic"))
PUBLIC = ("usps", "usps/z", "letter", "letter/z", "satimage", "satimage/z", "optdigits", "optdigits/z")
#: The share of n m up to which d^2 has a metric of all rows, and the numbers up to which classes have theirs.
KINDS = {
    "no metric": (0.0, 0),
    "of all rows": (metrics._WORTH_IT, 0),
    "as it comes": (metrics._WORTH_IT, metrics._MOST_NUMBERS),
}


def relu_rows(n: int, d: int, m: int, *, unit: bool, tail: bool) -> tuple[Any, Any]:
    """Make rows (n, d) and labels; of a long tail the last class has what is left of an exponential."""
    random = np.random.default_rng(1)
    y = np.minimum(random.exponential(m / 5, n).astype(np.int32), m - 1) if tail else labels_of(n, m)
    means, directions = class_means(m, d)
    X = random.standard_normal((n, d), dtype=np.float32) + means[y]
    X += random.standard_normal((n, DIRECTIONS), dtype=np.float32) @ directions
    np.maximum(X - np.float32(THRESHOLD), 0.0, out=X)
    # Few features may all lie below the threshold: such a row, or column, stays 0.
    if unit:
        return X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), np.finfo(np.float32).tiny), y
    return (X - X.mean(axis=0)) / np.maximum(X.std(axis=0), np.finfo(np.float32).tiny), y


def problems(options: argparse.Namespace) -> Iterator[tuple[str, Any, Any, int, Sequence[Any]]]:
    """Yield a name, rows, labels, classes and losses."""
    n, d, m = options.rows, options.d, options.m
    for unit in (True, False):
        for tail in (False, True):
            name = f"ReLU {n:,} x {d}, m {m}, {'unit norm' if unit else 'standardised'}"
            X, y = relu_rows(n, d, m, unit=unit, tail=tail)
            yield name + (", long tail" if tail else ""), X, y, m, LOSSES
    for data in sets_there(options.public.split(",") if options.public else (), options.data):
        yield data.title, data.X, data.y, data.m, LOSSES


def taken(X: Any, y: Any, loss: Any, C: float, m: int, kind: str) -> tuple[int, float]:
    """Give passes and CPU seconds of one fit."""
    share, numbers = KINDS[kind]
    with mock.patch.multiple(metrics, _WORTH_IT=share, _MOST_NUMBERS=numbers):
        began = time.process_time()
        result = solve(X, y, loss, 1.0 / (C * len(y)), method="lbfgs", m=m)
    if result.status is not Status.SOLVED:
        raise SystemExit(f"{loss.name} at C = {C:g} was not solved: {result!r}")
    return result.passes, time.process_time() - began


def main(arguments: Sequence[str] | None = None) -> list[dict[str, int]]:
    """Run the benchmark; give the passes of every kind."""
    options = read_options(
        __doc__, arguments, rows=40_000, d=256, m=250, C=[1.0, 10.0], data=DATA_DIR, public=",".join(PUBLIC)
    )
    found = []
    for title, X, y, m, losses in problems(options):
        print(title, flush=True)
        for loss in losses:
            taken(X, y, loss, 0.01, m, "as it comes")  # compiles
            for C in options.C:
                cells = {kind: taken(X, y, loss, C, m, kind) for kind in KINDS}
                parts = (f"{kind} {passes} passes, {s:.2g} CPU s" for kind, (passes, s) in cells.items())
                print(f"  {loss.name}, C {C:g}: " + "; ".join(parts), flush=True)
                found.append({kind: passes for kind, (passes, _) in cells.items()})
    return found


if __name__ == "__main__":
    main()
