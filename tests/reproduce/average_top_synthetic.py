"""Synthetic examples in the manner of the paper's figure 1 and of its set Sinc.

Its recipes are in a supplement that is not at hand: these follow what the text and the plots say, and their
figures are not the paper's.  A `generator` decides everything.
Source: Y. Fan, S. Lyu, Y. Ying, B.-G. Hu, "Learning with Average Top-k Loss", NIPS 2017, figure 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from tests.reproduce.average_top_experiments import grid_of_k, misclassification, prepared
from topline.solvers.average_top.solving import minimise
from topline.solvers.typing import Float64Array

#: Fresh examples on which errors are measured.
_FRESH = 10_000
_TOL = 1e-6


def multimodal(
    generator: np.random.Generator, n: int = 200, *, outlier: bool = True
) -> tuple[Float64Array, Float64Array]:
    """Give X (n, 2) and y (n,): two balanced classes, a fifth of the second apart from the rest of it.

    With `outlier` one example of the first class lies far inside the second.
    """
    half, rare = n // 2, n // 10
    first = generator.standard_normal((half, 2)) * [0.75, 0.95]
    common = generator.standard_normal((n - half - rare, 2)) * 0.65 + [6.0, 0.0]
    apart = generator.standard_normal((rare, 2)) * 0.3 + [-0.3, -3.0]
    X = np.vstack([first, common, apart])
    if outlier:
        X[0] = [8.0, 2.0]
    return X, np.repeat([-1.0, 1.0], [half, n - half])


def imbalanced(
    generator: np.random.Generator, n: int = 200, *, outlier: bool = True
) -> tuple[Float64Array, Float64Array]:
    """Give X (n, 2) and y (n,): a class of a tenth beside one of nine tenths that is broader.

    With `outlier` one example of the large class lies beyond the small one.
    """
    rare = n // 10
    small = generator.standard_normal((rare, 2)) * 0.4 + [-1.4, 0.0]
    large = generator.standard_normal((n - rare, 2)) * [0.9, 1.5] + [1.0, 0.0]
    X = np.vstack([small, large])
    if outlier:
        X[-1] = [-4.0, 0.0]
    return X, np.repeat([-1.0, 1.0], [rare, n - rare])


def sinc(
    generator: np.random.Generator, n: int = 1000, noise: float = 0.1, centres: int = 10
) -> tuple[Float64Array, Float64Array]:
    """Give X (n, centres) and y (n,): sin(x)/x on [-10, 10] with normal noise, seen by radial functions.

    A linear function of x alone explains none of it, so that x is seen through exp(-(x - c)^2 / 8) at evenly
    spaced centres c.
    """
    x = generator.uniform(-10.0, 10.0, n)
    y = np.sinc(x / np.pi) + noise * generator.standard_normal(n)
    places = np.linspace(-10.0, 10.0, centres)
    return np.exp(-((x[:, None] - places) ** 2) / 8.0), y


#: The two toys of figure 1.
TOYS: Mapping[str, Callable[..., tuple[Float64Array, Float64Array]]] = MappingProxyType(
    {"multimodal": multimodal, "imbalanced": imbalanced}
)


def toy_error_by_k(
    toy: str, loss: Any, seed: int, *, C: float = 100.0, n: int = 200, ks: Sequence[int] | None = None
) -> tuple[tuple[int, float], ...]:
    """Give (k, share of misclassified fresh examples) for one draw of a toy: a line of figure 1.

    Fresh examples hold no outlier; a score of 0 is an error.
    """
    generator = np.random.default_rng(seed)
    X, y = TOYS[toy](generator, n)
    fresh, labels = TOYS[toy](generator, _FRESH, outlier=False)
    rows = prepared(np.vstack([X, fresh]), np.arange(n))
    points = []
    for k in ks or grid_of_k(n, 20):
        w = minimise(rows[:n], y, loss, k, C, tol=_TOL).w
        points.append((k, misclassification(rows[n:] @ w, labels)))
    return tuple(points)
