"""Top-1, top-k, macro and tail accuracy of every kind of loss, each with C chosen by the same search.

    python -m tests.benchmarks.models.loss_accuracy [--data FOLDER] [--sets NAME ...] [--seeds N] [--quick]

A seed cuts at most `ROWS` rows into training, validation and test rows.  Each loss takes the C with the best
validation accuracy, in one guess and in k apart, and is trained again on both parts.  k is 5, or half of the
classes where these are fewer than ten.  Printed are the means over the seeds in per cent: of softmax itself,
of the other losses less softmax, with the standard error of that difference.  Tail is the mean accuracy of
the third of the classes that have the fewest training rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler

from tests.benchmarks.datasets import DATA_DIR, SETS
from tests.benchmarks.harness import print_row, read_options
from tests.benchmarks.models.first_answer import leaves100, vowel
from topline import (
    LDRKL,
    Loss,
    MaxHinge,
    OneVsAll,
    PolyhedralTopK,
    Softmax,
    SumExponential,
    TopKEntropy,
    TopKHinge,
    UsunierHinge,
    solve,
)
from topline.pipeline.evaluation.metrics import ranks_against_ties
from topline.solvers.names import default_k

Floats = NDArray[Any]

LOADERS = {
    "vowel": vowel, "letter": SETS["letter"], "usps": SETS["usps"], "leaves100": leaves100,
    "coil20": SETS["coil20"], "satimage": SETS["satimage"], "digits": SETS["digits"],
}  # fmt: skip
ROWS, COSTS, TOL = 4000, (0.1, 1.0, 10.0, 100.0), 1e-2
FIGURES = ("top-1", "top-k", "macro", "tail")


def loaded(name: str, folder: Path) -> tuple[Floats, NDArray[np.int32]]:
    """Return the features of a set, and classes from 0."""
    X, y = (np.asarray(part) for part in LOADERS[name](folder))
    return X, np.unique(y, return_inverse=True)[1].astype(np.int32)


def losses_of(k: int) -> dict[str, tuple[Loss, float]]:
    """Return the losses to compare and their smoothing, by name, softmax first."""
    return {
        "softmax": (Softmax(), 0.0), "max_hinge": (MaxHinge(), 0.0), "max_hinge, gamma 1": (MaxHinge(), 1.0),
        "one_vs_all_logistic": (OneVsAll("logistic"), 0.0), "topk_hinge": (TopKHinge(k), 0.0),
        "topk_hinge, gamma 1": (TopKHinge(k), 1.0), "usunier_hinge": (UsunierHinge(k), 0.0),
        "topk_entropy": (TopKEntropy(k), 0.0), "ldr_kl, T 0.3": (LDRKL(0.3), 0.0),
        "ldr_kl, T 0.1": (LDRKL(0.1), 0.0), "sum_exponential": (SumExponential(), 0.0),
        "polyhedral_topk, k 1": (PolyhedralTopK(1), 0.0), f"polyhedral_topk, k {k}": (PolyhedralTopK(k), 0.0),
    }  # fmt: skip


def accuracies(
    scores: NDArray[Any], y: NDArray[Any], k: int, sizes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the four figures of scores (n, m); `sizes` are the training rows of each class."""
    ranks = ranks_against_ties(scores, y)
    of_class = np.array([np.mean(ranks[y == code] == 1) for code in range(len(sizes)) if (y == code).any()])
    known = np.array([size for code, size in enumerate(sizes) if (y == code).any()])
    rarest = np.argsort(known, kind="stable")[: max(1, len(known) // 3)]
    return np.array([np.mean(ranks == 1), np.mean(ranks <= k), of_class.mean(), of_class[rarest].mean()])


@dataclass(frozen=True, eq=False)
class Cut:
    """Rows X (n, d) of mean norm about 1 with a constant, classes y (n,), and the rows of three splits."""

    X: NDArray[np.float32]
    y: NDArray[np.int32]
    train: NDArray[np.int64]
    valid: NDArray[np.int64]
    test: NDArray[np.int64]

    @classmethod
    def of(cls, X: NDArray[Any], y: NDArray[Any], seed: int) -> Cut:
        order = np.random.default_rng(seed).permutation(len(y))[:ROWS]
        train, valid, test = np.split(order, [len(order) * 9 // 20, len(order) * 13 // 20])
        X = StandardScaler().fit(X[train]).transform(X)
        X = np.column_stack([X / np.sqrt(np.mean(np.sum(X[train] ** 2, axis=1))), np.full(len(X), 0.5)])
        return cls(np.ascontiguousarray(X, dtype=np.float32), y, train, valid, test)

    @property
    def m(self) -> int:
        return int(self.y.max()) + 1

    def W(self, rows: NDArray[Any], loss: Loss, gamma: float, C: float) -> Floats:
        lam = 1.0 / (10.0 * C * len(rows))
        return solve(self.X[rows], self.y[rows], loss, lam, gamma, tol=TOL, max_passes=300, m=self.m).W

    def figures(
        self, rows: NDArray[Any], held_out: NDArray[Any], way: tuple[Loss, float], C: float
    ) -> Floats:
        sizes = np.bincount(self.y[rows], minlength=self.m)
        scores = self.X[held_out] @ self.W(rows, *way, C)
        return accuracies(scores, self.y[held_out], default_k(self.m), sizes)


def measured(X: NDArray[Any], y: NDArray[Any], seed: int) -> Floats:
    """Return the figures of every loss for one seed, (losses, 4)."""
    cut, found = Cut.of(X, y, seed), []
    both = np.concatenate([cut.train, cut.valid])
    for way in losses_of(default_k(cut.m)).values():
        tried = np.array([cut.figures(cut.train, cut.valid, way, C) for C in COSTS])
        best = [COSTS[place] for place in tried.argmax(axis=0)]
        tested = {C: cut.figures(both, cut.test, way, C) for C in set(best)}
        found.append([tested[C][place] for place, C in enumerate(best)])
    return np.array(found)


def main(arguments: Sequence[str] | None = None) -> dict[str, NDArray[np.float64]]:
    options = read_options(__doc__, arguments, data=DATA_DIR, sets=list(LOADERS)[:6], seeds=5, quick=False)
    results = {}
    for name in ["digits"] if options.quick else options.sets:
        X, y = loaded(name, options.data)
        rows = slice(0, 300 if options.quick else None)
        seeds = range(2 if options.quick else options.seeds)
        values = 100.0 * np.array([measured(X[rows], y[rows], seed) for seed in seeds])
        results[name] = values
        k = default_k(int(y.max()) + 1)
        print_row(f"{name}, m {int(y.max()) + 1}, k {k}", *FIGURES)
        for place, loss in enumerate(losses_of(k)):
            apart = values[:, place] - values[:, 0]
            errors = apart.std(axis=0, ddof=1) / np.sqrt(len(seeds))
            means = values[:, 0].mean(axis=0) if place == 0 else apart.mean(axis=0)
            texts = [
                f"{mean:.2f}" if place == 0 else f"{mean:+.2f} ± {error:.2f}"
                for mean, error in zip(means, errors, strict=True)
            ]
            print_row(loss, *texts)
    return results


if __name__ == "__main__":
    main()
