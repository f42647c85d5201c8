"""Estimates of leave-one-out margins against brute force, and suspects under noise that depends on the class.

    python -m tests.benchmarks.models.left_out

The first table trains a classifier on at most `--rows` rows of every set, and once more without each of
`--left` of them, to a relative gap of 1e-5.  With these it compares the margins of ten held-out folds
(`leave_one_out`), and those of the classifier itself: the error that each says, and mean difference and
correlation, of all rows tried and of those that no bound decides; `--left 0` leaves it out.  The second table
gives `--noise` of the rows, drawn with the seeds 0, 1, ..., the label of the class whose mean is nearest to
that of their own ("similar"), or any other, and counts how many of them are among as many first suspects:
those of a max hinge, of `second_opinion`, and of both together, as `topline inspect` ranks.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.datasets import DATA_DIR, load
from tests.benchmarks.harness import print_head, print_row, read_options
from tests.benchmarks.models.first_answer import leaves100
from tests.benchmarks.models.label_suspects import flipped, rows_of
from topline import MaxHinge, Softmax, solve
from topline.solvers.inspection import leave_one_out, margins_of, second_opinion

SETS = ("usps", "letter", "satimage", "googlenet", "leaves")
LOSSES = {"softmax": Softmax(), "max_hinge": MaxHinge()}


def some_rows(name: str, folder: Path, most: int) -> tuple[Any, Any]:
    """Return at most so many rows of unit norm with a constant, drawn at random, and their labels."""
    if name == "leaves":
        X, y = leaves100(folder)
        X = (X - X.mean(axis=0)) / (X.std(axis=0) + 1e-9)
    else:
        data = load(name, folder)
        X, y = data.X, data.y
    drawn = np.random.default_rng(0).permutation(len(y))[:most]
    return rows_of(X[drawn].astype(np.float32)), np.unique(y[drawn], return_inverse=True)[1].astype(np.int32)


def brute_force(X: Any, y: Any, loss: Any, lam: float, rows: Any) -> Any:
    """Return the margin of each of some rows by a classifier that is trained without it."""
    margins = np.empty(len(rows))
    for place, row in enumerate(rows.tolist()):
        weights = np.ones(len(y))
        weights[row] = 0.0
        W = solve(X, y, loss, lam, sample_weight=weights, tol=1e-5, m=int(y.max()) + 1).W
        margins[place] = margins_of(np.asarray(X[row : row + 1] @ W, float), y[row : row + 1], 1)[0][0]
    return margins


def nearest_class_noise(X: Any, y: Any, share: float, seed: int) -> tuple[Any, Any]:
    """Return labels of which a share is that of the class with the nearest mean, and which rows have it."""
    means = np.stack([X[y == code].mean(axis=0) for code in range(int(y.max()) + 1)])
    apart = ((means[:, None] - means) ** 2).sum(axis=2)
    np.fill_diagonal(apart, np.inf)
    wrong = np.zeros(len(y), dtype=bool)
    wrong[np.random.default_rng(seed).permutation(len(y))[: round(share * len(y))]] = True
    return np.where(wrong, apart.argmin(axis=1)[y], y).astype(np.int32), wrong


def estimate_line(name: str, X: Any, y: Any, loss: str, C: float, left: int) -> list[str]:
    """Return a row of the first table."""
    lam = 1.0 / (len(y) * C)
    result = solve(X, y, LOSSES[loss], lam, keep_duals=loss != "softmax")
    found = leave_one_out(X, y, result, max_passes=0)
    rows = np.random.default_rng(1).permutation(len(y))[:left]
    exact = brute_force(X, y, LOSSES[loss], lam, rows)
    seen = margins_of(np.asarray(X @ result.W, float), y, 1)[0][rows]
    undecided = found.open[rows]
    cells = [name, loss, f"{C:g}", f"{undecided.mean():.0%}", f"{(exact <= 0).mean():.1%}"]
    for margins in (found.margins[rows], seen):
        cells.append(f"{(margins <= 0).mean():.1%}")
        for kept in (np.ones(len(rows), bool), undecided):
            off, many = np.abs(margins - exact)[kept], kept.sum() > 2
            correlation = np.corrcoef(margins[kept], exact[kept])[0, 1] if many else np.nan
            cells.append(f"{off.mean():.3f}, {correlation:.3f}" if many else "-")
    return cells


def suspects_line(name: str, X: Any, y: Any, C: float, kind: str, share: float, seeds: int) -> list[str]:
    """Return a row of the second table."""
    found: list[list[float]] = []
    for seed in range(seeds):
        similar = kind == "similar"
        given, wrong = nearest_class_noise(X, y, share, seed) if similar else flipped(y, share, seed)
        hinge = solve(X, given, MaxHinge(), 1.0 / (len(y) * C), keep_duals=True)
        asked = (leave_one_out(X, given, hinge, max_passes=0), second_opinion(X, given, hinge))
        suspicion = [one.suspicion() for one in asked]
        ranked = [np.argsort(-one, kind="stable") for one in (*suspicion, suspicion[0] + suspicion[1])]
        found.append([float(wrong[order[: wrong.sum()]].mean()) for order in ranked])
    return [name, f"{C:g}", kind, *(f"{one:.1%}" for one in np.mean(found, axis=0))]


def main(arguments: list[str] | None = None) -> None:
    """Print the tables as Markdown."""
    options = read_options(
        __doc__, arguments, data=DATA_DIR, sets=list(SETS), rows=1500, left=60, C=[1.0, 10.0], noise=0.1,
        seeds=2,
    )  # fmt: skip
    warnings.simplefilter("ignore")
    sets = {name: some_rows(name, options.data, options.rows) for name in options.sets}
    parts = ("of all", "of open rows")
    if options.left:
        print_head("set", "loss", "C", "open", "brute force", "folds", *parts, "training", *parts)
    for name, (X, y) in sets.items() if options.left else ():
        for loss in LOSSES:
            for C in options.C:
                print_row(*estimate_line(name, X, y, loss, C, options.left))
    print()
    print_head("set", "C", "wrong", "max hinge", "second opinion", "both")
    for name, (X, y) in sets.items():
        for C in options.C:
            for kind in ("any", "similar"):
                print_row(*suspects_line(name, X, y, C, kind, options.noise, options.seeds))


if __name__ == "__main__":
    main()
