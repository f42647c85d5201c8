"""The number of guesses of each row by a linear selector, beside conformal sets of the same size.

    python -m tests.benchmarks.models.guesses [--data FOLDER] [--sets NAME ...] [--seeds N] [--quick]

The classifier is the softmax of `loss_accuracy`.  The selector is that of `predict --guess-price`, fitted to
the validation rows: a mistake costs 1 and k guesses, of 1 to 8, `PRICES` log(k).  The conformal sets are
of the kind that is smallest on the validation rows, with the threshold that gives them the selector's mean
size.  Printed are the shares of test rows whose class is held, and the paired difference with its standard
error, over all seeds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.benchmarks.datasets import DATA_DIR
from tests.benchmarks.harness import print_head, print_row, read_options
from tests.benchmarks.models.loss_accuracy import COSTS, Cut, Floats, loaded
from topline import Softmax
from topline.solvers.calibration import conformity, fit_guesses, fit_probabilities, smallest_weighings

PRICES = (0.02, 0.05, 0.1, 0.2)


def selected(cut: Cut) -> list[Floats]:
    """Return by price (3, n): sizes of the sets of the test rows, and the hits of both kinds of sets."""
    X, y, valid = cut.X.astype(np.float64), cut.y, cut.valid
    tried = [cut.W(cut.train, Softmax(), 0.0, C) for C in COSTS]
    W = max(tried, key=lambda W: float(np.mean((X[valid] @ W).argmax(axis=1) == y[valid])))
    scores, draws = X @ W, np.random.default_rng(0).random(len(y))
    fitted = fit_probabilities(scores[valid], y[valid])
    p, rows = fitted.probabilities(scores), np.arange(len(y))
    tuning = (scores[valid], p[valid], y[valid], draws[valid])
    found = []
    for price in PRICES:
        sets = fit_guesses(fitted, scores[valid], y[valid], price).sets(scores)
        sizes, ours = sets.sum(axis=1)[cut.test], sets[rows, y]
        weighing = smallest_weighings(*tuning, [min(float(ours[valid].mean()), 0.99)])[0]
        E = conformity(scores[cut.test], p[cut.test], draws[cut.test], weighing)
        held = np.sort(E.ravel())[int(sizes.sum()) - 1] >= E[np.arange(len(E)), y[cut.test]]
        found.append(np.array([sizes, ours[cut.test], held], dtype=np.float64))
    return found


def main(arguments: Sequence[str] | None = None) -> dict[str, Floats]:
    """Print the table; return by set the lead of the selector and its standard error, (prices, 2) points."""
    given = read_options(
        __doc__, arguments, data=DATA_DIR, sets=["vowel", "letter", "usps", "satimage"], seeds=5, quick=False
    )
    results = {}
    print_head("set", "mean size", "selector", "conformal", "difference")
    for name in ["digits"] if given.quick else given.sets:
        X, y = loaded(name, given.data)
        parts = [selected(Cut.of(X, y, seed)) for seed in range(2 if given.quick else given.seeds)]
        results[name] = []
        for sizes, ours, theirs in (np.concatenate(one, axis=1) for one in zip(*parts, strict=True)):
            lead, error = 100.0 * (ours - theirs).mean(), 100.0 * (ours - theirs).std() / np.sqrt(len(ours))
            results[name].append((lead, error))
            hits = f"{ours.mean():.1%}", f"{theirs.mean():.1%}"
            print_row(name, f"{sizes.mean():.2f}", *hits, f"{lead:+.2f} ± {error:.2f}")
    return {name: np.array(found) for name, found in results.items()}


if __name__ == "__main__":
    main()
