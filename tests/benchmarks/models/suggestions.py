"""Accuracy after labelling what `topline suggest` chooses, beside the least certain rows and random ones.

    python -m tests.benchmarks.models.suggestions

A softmax is trained on `--begin` random rows; then `--rounds` times `--count` rows of the others get their
labels, chosen in three ways, and it is trained anew.  The table has the accuracies on a held-out third before
and after, as means and standard errors over the seeds, which draw the split and the first rows.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np

from tests.benchmarks.datasets import DATA_DIR, load
from tests.benchmarks.harness import print_head, print_row, read_options
from tests.benchmarks.models.label_suspects import rows_of
from topline import Softmax, solve
from topline.pipeline.inspection.suggest import POOL, spread

SETS = ("digits", "usps", "satimage", "letter", "googlenet")
WAYS = ("suggest", "least certain", "random")


def chosen(way: str, X: Any, W: Any, pool: Any, count: int, rng: np.random.Generator) -> Any:
    """Return which rows of the pool to label."""
    if way == "random":
        return rng.choice(pool, count, replace=False)
    scores = np.sort(np.asarray(X[pool] @ W, float), axis=1)
    leads = scores[:, -1] - scores[:, -2]
    order = np.argsort(leads, kind="stable")[: POOL * count]
    return (
        pool[order[spread(X[pool[order]], leads[order], count)[0]]]
        if way == "suggest"
        else pool[order[:count]]
    )


def accuracies(X: Any, y: Any, seed: int, options: argparse.Namespace) -> list[float]:
    """Return the accuracy at first, and after all rounds by each way."""
    rng = np.random.default_rng(seed)
    order, m = rng.permutation(len(y)), int(y.max()) + 1
    held, rest = order[: len(y) // 3], order[len(y) // 3 :]

    def trained(rows: Any) -> Any:
        return solve(X[rows], y[rows], Softmax(), 1.0 / (len(rows) * options.C), m=m).W

    def accuracy(W: Any) -> float:
        return float((np.argmax(X[held] @ W, axis=1) == y[held]).mean())

    begun = rest[: options.begin]
    found = [accuracy(trained(begun))]
    for way in WAYS:
        rows, draws = begun, np.random.default_rng(seed)
        for _ in range(options.rounds):
            pool = np.setdiff1d(rest, rows)
            rows = np.concatenate([rows, chosen(way, X, trained(rows), pool, options.count, draws)])
        found.append(accuracy(trained(rows)))
    return found


def main(arguments: list[str] | None = None) -> None:
    """Print the table as Markdown."""
    options = read_options(
        __doc__, arguments, data=DATA_DIR, sets=list(SETS), rows=4000, begin=50, count=50, rounds=3, C=10.0,
        seeds=10,
    )  # fmt: skip
    warnings.simplefilter("ignore")
    print_head("set", "first", *WAYS, "suggest less random")
    for name in options.sets:
        data = load(name, options.data)
        drawn = np.random.default_rng(0).permutation(len(data.y))[: options.rows]
        X, y = rows_of(data.X[drawn]), np.unique(data.y[drawn], return_inverse=True)[1].astype(np.int32)
        found = np.array([accuracies(X, y, seed, options) for seed in range(options.seeds)])
        gain = found[:, 1] - found[:, 3]
        error = gain.std(ddof=1) / np.sqrt(len(gain))
        means = (f"{share:.1%}" for share in found.mean(axis=0))
        print_row(name, *means, f"{gain.mean():+.1%} ± {error:.1%}")


if __name__ == "__main__":
    main()
