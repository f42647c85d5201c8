"""Whether a classifier can tell new rows from those before: drift that no feature shows on its own.

Ridge regression on the sign of the side, features standardised, is fitted on every second row and scores the
others, and the other way round.  The ROC area of the scores is the share of pairs, one row of each side, that
it puts in the right order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from topline.pipeline.rows import TrainingRows

MOST_ROWS = 1000
#: With fewer rows on a side an area says nothing.
LEAST_ROWS = 20
_RIDGE = 1.0


def domain_samples(before: TrainingRows, now: TrainingRows) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return some rows of each side, dense, at most `MOST_ROWS`: of those now only what is new by its id.

    All rows of now where too few are new: a data set may number its rows.
    """
    ids = before.dataset.sample_ids()
    known = {ids[row] for row in before.indices}
    own = now.dataset.sample_ids()
    new = np.flatnonzero([own[row] not in known for row in now.indices])
    chosen = new if len(new) >= LEAST_ROWS else np.arange(len(now))
    return _some(before, np.arange(len(before))), _some(now, chosen)


def domain_area(before: NDArray[Any], now: NDArray[Any]) -> float | None:
    """Return the ROC area of a classifier of two sets of rows, (r, d) and (s, d); None where one is small."""
    if min(len(before), len(now)) < LEAST_ROWS:
        return None
    X = np.concatenate([before, now]).astype(np.float64)
    X = (X - X.mean(axis=0)) / np.maximum(X.std(axis=0), 1e-12)
    sign = np.concatenate([-np.ones(len(before)), np.ones(len(now))])
    halves = np.concatenate([np.arange(len(before)), np.arange(len(now))]) % 2 == 0
    areas = [_area(X, sign, fitted) for fitted in (halves, ~halves)]
    return float(np.mean(areas))


def _area(X: NDArray[np.float64], sign: NDArray[np.float64], fitted: NDArray[np.bool_]) -> float:
    """Return the area of the rows that are not `fitted`, under a classifier of those that are."""
    A, y = X[fitted], sign[fitted]
    # Both sides weigh the same, and the rows are fewer than the features or about as many: solve for them.
    weight = np.where(y > 0, 0.5 / (y > 0).mean(), 0.5 / (y < 0).mean())
    B = A * np.sqrt(weight)[:, None]
    K = B @ B.T / A.shape[1]
    dual = np.linalg.solve(K + _RIDGE * np.eye(len(K)), np.sqrt(weight) * y)
    scores = X[~fitted] @ (B.T @ dual)
    ranks, positive = rankdata(scores), sign[~fitted] > 0
    p = int(positive.sum())
    n = len(positive) - p
    return float((ranks[positive].sum() - p * (p + 1) / 2) / (p * n))


def _some(rows: TrainingRows, chosen: NDArray[np.int64]) -> NDArray[Any]:
    """Return rows at some places, evenly spread over these, without transforms."""
    step = max(1, -(-len(chosen) // MOST_ROWS))
    wanted, found = chosen[::step], []
    for batch in range(rows.batches):
        start, stop = rows.batch_span(batch)
        own = wanted[(start <= wanted) & (wanted < stop)] - start
        if len(own):
            part: Any = rows.raw_batch(batch)[own]
            found.append(np.asarray(part.toarray() if hasattr(part, "toarray") else part))
    return np.concatenate(found) if found else np.zeros((0, rows.dataset.info.d))
