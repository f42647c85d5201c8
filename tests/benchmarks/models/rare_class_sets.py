"""Coverage of classes and size of prediction sets where many classes have few calibration rows.

    python -m tests.benchmarks.models.rare_class_sets [--data FOLDER] [--seeds N] [--quick]

Softmax is trained on part of a set; the classes' calibration rows fall exponentially to `LEAST` of them, in
an order of the classes that each seed draws.  Thresholds are shared by all classes; by none, where a class
with too few rows is in every set (`per_class`); and by clusters of classes whose conformity is alike (Ding,
Angelopoulos, Bates, Jordan and Tibshirani, NeurIPS 2023), by k-means of their quantiles on half of the rows,
where classes with too few rows take the threshold of all.  Printed are means over the seeds: what share of
rows is covered, the mean and the largest amount by which a class falls short of the coverage, the share of
classes that fall short by more than a tenth, and the mean size of a set.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.preprocessing import StandardScaler

from tests.benchmarks.datasets import DATA_DIR, SETS
from tests.benchmarks.models.first_answer import leaves100
from topline import TopKClassifier
from topline.solvers.calibration import CalibrationRows, least_rows, prediction_sets

#: Loader, coverage, training rows and most calibration rows of a class.
CASES = {"letter": (SETS["letter_all"], 0.9, 150, 100), "leaves100": (leaves100, 0.8, 6, 6)}
QUICK = {"digits": (SETS["digits"], 0.9, 40, 30)}
LEAST, LEVELS = 2, (0.5, 0.6, 0.7, 0.8, 0.9)
RULES = ("all classes", "each class", "clusters")


def by_clusters(
    rows: CalibrationRows, m: int, coverage: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return the thresholds (m,) of clusters; a cluster, or the whole, calibrates on rows of its own."""
    half = rng.random(len(rows)) < 0.5
    E, labels = rows.conformity("probability"), rows.labels
    counts = np.bincount(labels[half], minlength=m)
    enough = np.flatnonzero(counts >= least_rows(coverage))
    cluster = np.zeros(m, dtype=np.int32)
    if len(enough) >= 2:
        shape = np.array([np.quantile(E[half & (labels == code)], LEVELS) for code in enough])
        means = KMeans(max(2, len(enough) // 4), n_init=4, random_state=0)
        cluster[enough] = 1 + means.fit_predict(shape, sample_weight=np.sqrt(counts[enough]))
    kept = [part[~half] for part in (cluster[labels], rows.ranks, rows.before, rows.own, rows.draws)]
    names = [""] * (int(cluster.max()) + 1)
    found = CalibrationRows(*kept).thresholds(coverage, "probability", names, per_class=True)
    whole = rows.thresholds(coverage, "probability", names, per_class=False)
    found[0] = whole[0]
    return np.where(np.isfinite(found), found, whole)[cluster]


def measured(data: Any, coverage: float, training: int, most: int, seed: int) -> list[list[float]]:
    """Return the figures of each rule for one seed."""
    X, y = data
    y = np.unique(y, return_inverse=True)[1]
    rng, m = np.random.default_rng(seed), int(y.max()) + 1
    order = rng.permutation(len(y))
    place = np.empty(len(y), dtype=np.int64)
    for code in range(m):
        own = order[y[order] == code]
        place[own] = np.arange(len(own))
    quota = np.round(most * (LEAST / most) ** (rng.permutation(m) / (m - 1))).astype(np.int64)
    train, test = place < training, place >= training + most
    calibration = (place >= training) & (place < training + quota[y])
    model = TopKClassifier("softmax", C=10.0, tol=1e-2)
    X = StandardScaler().fit(X[train]).transform(X)
    model.fit(X[train], y[train])
    scores, p, u = model.decision_function(X), model.predict_proba(X), rng.random(len(y))
    rows = CalibrationRows.of(scores[calibration], p[calibration], y[calibration], u[calibration])
    names = [""] * m
    bounds = [rows.thresholds(coverage, "probability", names, per_class=each) for each in (False, True)]
    figures = []
    for thresholds in (*bounds, by_clusters(rows, m, coverage, rng)):
        sets = prediction_sets(scores[test], p[test], u[test], "probability", thresholds)
        held = sets[np.arange(len(sets)), y[test]]
        short = np.array([max(coverage - held[y[test] == code].mean(), 0.0) for code in range(m)])
        figures.append(
            [held.mean(), short.mean(), short.max(), float(np.mean(short > 0.1)), sets.sum(axis=1).mean()]
        )
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA_DIR)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="digits, two seeds")
    options = parser.parse_args(arguments)
    seeds = range(2 if options.quick else options.seeds)
    for name, (load, coverage, training, most) in (QUICK if options.quick else CASES).items():
        data = tuple(np.asarray(part) for part in load(options.data))
        found = np.mean([measured(data, coverage, training, most, seed) for seed in seeds], axis=0)
        print(f"{name}, coverage {coverage:g}: covered, short on average, at most, > 0.1, classes a set")
        for rule, (covered, short, worst, many, size) in zip(RULES, found.tolist(), strict=True):
            print(f"  {rule:12} {covered:.3f} {short:.3f} {worst:.3f} {many:6.1%} {size:8.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
