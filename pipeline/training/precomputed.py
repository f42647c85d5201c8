"""Kernel values that a dataset holds in place of features: row i is k(x_i, x_j) of every training row j."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.errors import ConfigError
from topline.pipeline.rows import TrainingRows
from topline.solvers.errors import InvalidProblemError
from topline.solvers.kernels import factor

#: Random signs that tell K from its transpose, and rows whose own matrix is factored whole.
PROBES, SAMPLED_ROWS = 4, 1000
#: Values opposite each other may differ by so many roundings of float32, and by the root of n times that.
ROUNDINGS = 10.0


def check_kernel_values(rows: TrainingRows) -> None:
    """Refuse rows that are not the matrix of a kernel, in one pass over them; n^2 numbers are never held.

    With v of random signs K v = K^T v up to rounding where K is symmetric; where it is not, row i of the
    two differs by at least the largest k_ij - k_ji half of the time.  Of negative eigenvalues the diagonal
    and the matrix of up to 1,000 rows tell.
    """
    n, d = rows.shape
    name = f"dataset {rows.dataset.info.id}"
    if d != n:
        raise ConfigError(
            f"{name} has {d:,} kernel values per row and {n:,} training rows: give k of every row with each"
            " training row, in their order, and say with --split which rows these are"
        )
    if rows.dataset.info.dtype == "float16":
        raise ConfigError(
            f"{name} holds kernel values in float16, whose rounding makes eigenvalues below zero: import it"
            " with --dtype float32"
        )
    random = np.random.default_rng(0)
    signs = random.choice([-1.0, 1.0], size=(n, PROBES))
    chosen = np.sort(random.choice(n, size=min(n, SAMPLED_ROWS), replace=False))
    along, across = np.zeros((n, PROBES)), np.zeros((n, PROBES))
    diagonal, sample, largest = np.zeros(n), np.zeros((len(chosen), len(chosen))), 0.0
    for start, stop, tile in rows.tiles():
        X: NDArray[Any] = (tile.toarray() if hasattr(tile, "toarray") else tile).astype(np.float64)
        along[start:stop] = X @ signs
        across += X.T @ signs[start:stop]
        diagonal[start:stop] = X[np.arange(stop - start), np.arange(start, stop)]
        low, high = np.searchsorted(chosen, [start, stop])
        sample[low:high] = X[np.ix_(chosen[low:high] - start, chosen)]
        largest = max(largest, float(np.abs(X).max(initial=0.0)))
    rounding = ROUNDINGS * float(np.finfo(np.float32).eps) * largest
    apart = np.abs(along - across).max(axis=1)
    if not np.all(apart <= rounding * n**0.5):
        worst = int(np.argmax(apart))
        raise ConfigError(
            f"the kernel values of {name} are not symmetric: those of training row {worst} differ by about"
            f" {apart[worst]:.3g} from those of the others with it; import K(rows, training rows), or"
            " (K + K.T) / 2 where that is rounding"
        )
    if diagonal.min(initial=0.0) < -rounding:
        worst = int(np.argmin(diagonal))
        raise ConfigError(
            f"the kernel of {name} is not positive semi-definite: k of training row {worst} with itself is"
            f" {diagonal[worst]:.3g}"
        )
    try:
        factor(0.5 * (sample + sample.T), "precomputed", rounded=True)
    except InvalidProblemError as error:
        raise ConfigError(f"{len(chosen):,} rows of {name}: {error}") from error
