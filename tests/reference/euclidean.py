"""Projections of one vector on the sets of the top-k family.

Every function minimises (1/2)|x - b|^2 + (bias/2) (sum x)^2 over its set; bias = 0 is the Euclidean
projection.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from topline.solvers.losses import flat
from topline.solvers.losses.base import NO_MARGINS
from topline.solvers.losses.multilabel import bipartite_simplex
from topline.solvers.projections import ColumnProblem, column_workspace
from topline.solvers.projections.isotonic import scaled_permutahedron
from topline.solvers.projections.simplex import project_on_simplex
from topline.solvers.typing import Float64Array


def project_topk_cone(b: ArrayLike, k: int, bias: float = 0.0) -> Float64Array:
    """Project on the top-k cone {0 <= x_j <= (sum x) / k} (Lapin's thesis, section 5.4.2).

    b is (d,), 1 <= k <= d, bias >= 0.  Gives x (d,).
    """
    return _scaled(b, k, bias, np.inf)


def project_topk_simplex_alpha(b: ArrayLike, k: int, radius: float = 1.0, bias: float = 0.0) -> Float64Array:
    """Project on {0 <= x_j <= (sum x) / k, sum x <= radius} (Lapin's thesis, definition 5.2, section 5.4.3).

    b is (d,), 1 <= k <= d, radius > 0, bias >= 0.  Gives x (d,).
    """
    return _scaled(b, k, bias, radius)


def project_simplex(a: ArrayLike, total: float) -> Float64Array:
    """Project a (d,) on {x >= 0, sum x = total}, the knapsack without an upper bound that counts."""
    values = np.array(a, dtype=np.float64)
    out = np.empty_like(values)
    project_on_simplex(values - values.max(), total, out)
    return out


def project_bipartite_simplex(
    b: ArrayLike, d: ArrayLike, radius: float = 1.0
) -> tuple[Float64Array, Float64Array]:
    """Project (b, d) on {x, z >= 0, sum x = sum z <= radius} (Lapin's thesis, eq. 6.24 and prop. 6.19).

    Gives x like b and z like d.
    """
    left, right = np.array(b, dtype=np.float64), np.array(d, dtype=np.float64)
    x, z = np.empty_like(left), np.empty_like(right)
    tops = left.max(), right.max()
    bipartite_simplex(left - tops[0], right - tops[1], sum(tops), radius, x, z)
    return x, z


def _scaled(b: ArrayLike, k: int, bias: float, t_max: float) -> Float64Array:
    """Project on the scaled permutahedron of flat(k), whose scale is the sum of x."""
    values = np.array(b, dtype=np.float64)
    room = column_workspace(len(values))
    problem = ColumnProblem(values, -1, 1.0, 1.0, flat(k), NO_MARGINS, np.empty_like(values), *room, False)
    scaled_permutahedron(problem, values, bias, t_max)
    return -problem.out
