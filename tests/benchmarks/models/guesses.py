"""The number of guesses of each row by a linear selector, beside conformal sets of the same size.

    python -m tests.benchmarks.models.guesses [--data FOLDER] [--sets NAME ...] [--seeds N] [--quick]

The classifier is the softmax of `loss_accuracy`.  The selector is trained on the validation rows by a
cost-weighted softmax (Cortes et al., "Cardinality-aware set prediction and top-k classification", NeurIPS
2024): a mistake costs 1 and k guesses, of 1 to 8, `PRICES` log(k).  Its features are those of the row and the
logarithms of the best probabilities; its lam is the best on the last of these rows.  The conformal sets are
of the kind that is smallest on the validation rows, with the threshold that gives them the selector's mean
size.  Printed are the shares of test rows whose class is held, and the paired difference with its standard
error, over all seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.special import log_softmax

from tests.benchmarks.datasets import DATA_DIR
from tests.benchmarks.models.loss_accuracy import COSTS, LOADERS, Cut, Floats, minimised, ways_of
from topline.solvers.calibration import conformity, fit_probabilities, smallest_weighings

PRICES, LAMBDAS, MOST = (0.02, 0.05, 0.1, 0.2), (1e-1, 1e-2, 1e-3), 8


def selected(cut: Cut) -> list[Floats]:
    """Return by price (3, n): sizes of the sets of the test rows, and the hits of both kinds of sets."""
    X, y, valid, way = cut.X.astype(np.float64), cut.y, cut.valid, ways_of(1)["softmax"]
    tried = [cut.W(cut.train, way, C) for C in COSTS]
    W = max(tried, key=lambda W: float(np.mean((X[valid] @ W).argmax(axis=1) == y[valid])))
    scores, draws = X @ W, np.random.default_rng(0).random(len(y))
    p = fit_probabilities(scores[valid], y[valid]).probabilities(scores)
    ranks = (scores >= scores[np.arange(len(y)), y][:, None]).sum(axis=1)
    best = np.log(-np.sort(-p, axis=1)[:, :MOST] + 1e-12)
    features = np.column_stack([X, (best - best[valid].mean(axis=0)) / (best[valid].std(axis=0) + 1e-9)])
    guesses = np.arange(1, best.shape[1] + 1)
    tuning = (scores[valid], p[valid], y[valid], draws[valid])
    first, last = np.split(valid, [len(valid) * 7 // 10])
    found = []
    for price in PRICES:
        costs = (ranks[:, None] > guesses) + price * np.log(guesses)
        spent = []
        for lam in LAMBDAS:
            R = _selector(features[first], costs[first], lam)
            spent.append(costs[last, (features[last] @ R).argmax(axis=1)].mean())
        R = _selector(features[valid], costs[valid], LAMBDAS[int(np.argmin(spent))])
        sizes = guesses[(features[cut.test] @ R).argmax(axis=1)]
        coverage = float(np.mean(ranks[valid] <= guesses[(features[valid] @ R).argmax(axis=1)]))
        weighing = smallest_weighings(*tuning, [min(coverage, 0.99)])[0]
        E = conformity(scores[cut.test], p[cut.test], draws[cut.test], weighing)
        held = np.sort(E.ravel())[int(sizes.sum()) - 1] >= E[np.arange(len(E)), y[cut.test]]
        found.append(np.array([sizes, ranks[cut.test] <= sizes, held], dtype=np.float64))
    return found


def _selector(features: Floats, costs: Floats, lam: float) -> Floats:
    """Return the weights (d, k) of the least sum of -(largest cost - cost) log softmax over rows (n, d)."""
    worth = costs.max() - costs

    def value(S: Floats) -> tuple[Floats, Floats]:
        logs = log_softmax(S, axis=1)
        return -(worth * logs).sum(axis=1), worth.sum(axis=1)[:, None] * np.exp(logs) - worth

    return minimised(value, features, costs.shape[1], lam)


def main(arguments: Sequence[str] | None = None) -> dict[str, Floats]:
    """Print the table; return by set the lead of the selector and its standard error, (prices, 2) points."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA_DIR)
    parser.add_argument(
        "--sets", nargs="+", choices=list(LOADERS), default=["vowel", "letter", "usps", "satimage"]
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="two seeds of the digits")
    given = parser.parse_args(arguments)
    results = {}
    print("| set | mean size | selector | conformal | difference |\n|---|---|---|---|---|")
    for name in ["digits"] if given.quick else given.sets:
        X, y = (np.asarray(part) for part in LOADERS[name](given.data))
        y = np.unique(y, return_inverse=True)[1].astype(np.int32)
        parts = [selected(Cut.of(X, y, seed)) for seed in range(2 if given.quick else given.seeds)]
        results[name] = []
        for sizes, ours, theirs in (np.concatenate(one, axis=1) for one in zip(*parts, strict=True)):
            lead, error = 100.0 * (ours - theirs).mean(), 100.0 * (ours - theirs).std() / np.sqrt(len(ours))
            results[name].append((lead, error))
            print(
                f"| {name} | {sizes.mean():.2f} | {ours.mean():.1%} | {theirs.mean():.1%} |"
                f" {lead:+.2f} ± {error:.2f} |",
                flush=True,
            )
    return {name: np.array(found) for name, found in results.items()}


if __name__ == "__main__":
    main()
