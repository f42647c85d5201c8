"""Word counts made shorter, as the papers on Frank-Wolfe methods have them."""

from __future__ import annotations

import numpy as np

from tests.reproduce.formats import Examples
from tests.reproduce.table import Setting

#: Singular directions in the papers.
DIRECTIONS = 1024


def reduced(setting: Setting, data: Examples, *, unit: bool) -> tuple[Examples, int]:
    """Give the examples in their first singular directions, in float32, and how many these are.

    `unit` scales the rows of counts to unit length first; else all are divided by one number, for which their
    mean squared length is 1.
    """
    from sklearn.decomposition import TruncatedSVD
    from sklearn.preprocessing import normalize

    kept = min(setting.of(DIRECTIONS, 256, 16), min(data.X.shape) - 1)
    setting.begin("reduce", 1, "matrix")
    model = TruncatedSVD(kept, n_iter=setting.of(4, 1, 1), random_state=setting.seed)
    X = model.fit_transform(normalize(data.X) if unit else data.X)
    setting.advance()
    if not unit:
        X /= np.sqrt(np.mean(np.einsum("ij,ij->i", X, X)))
    return Examples(np.ascontiguousarray(X, np.float32), data.y), kept
