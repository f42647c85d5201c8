"""Joint features psi(x, j) of an example and a class, for problems whose classes share weights.

A class scores <V, psi(x, j)>, and V takes the place of W in P and D.  Blocks of rows need two products of a
map: the weights W (d, m) with which row x scores x^T W, and the adjoint, applied to sum_i x_i u_i^T (d, m).
With psi(x, j) = e_j (x) x both are the identity, and the problem is the ordinary one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from topline.solvers.errors import InvalidProblemError
from topline.solvers.typing import Float64Array, FloatArray


@runtime_checkable
class FeatureMap(Protocol):
    """Joint features that are linear in x, given by their products.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import ClassEmbeddings
    >>> from topline.solvers.core.feature_maps import FeatureMap
    >>> isinstance(ClassEmbeddings(np.eye(3)), FeatureMap)
    True
    """

    @property
    def classes(self) -> int:
        """Number of classes m."""
        ...

    def shape(self, d: int, /) -> tuple[int, int]:
        """Return the shape of V for rows of d features."""
        ...

    def class_weights(self, V: Float64Array, /) -> Float64Array:
        """Return W (d, m) with <V, psi(x, j)> = (x^T W)_j."""
        ...

    def summed(self, product: Float64Array, /) -> Float64Array:
        """Return sum_ij u_ij psi(x_i, j), in the shape of V, from sum_i x_i u_i^T (d, m)."""
        ...


@dataclass(frozen=True, eq=False)
class ClassEmbeddings:
    """psi(x, j) = x c_j^T for class descriptions c_j: row j of `embeddings` (m, e), such as of a text.

    V (d, e) gives class j the weights V c_j, even for a class without examples.  Raises InvalidProblemError
    unless the embeddings are a finite matrix.

    Examples
    --------
    >>> import numpy as np
    >>> from topline import ClassEmbeddings
    >>> ClassEmbeddings(np.array([[1.0, 0.0], [1.0, 1.0]])).class_weights(np.array([[2.0, 3.0]]))
    array([[2., 5.]])
    """

    embeddings: Any

    def __post_init__(self) -> None:
        values = np.asarray(self.embeddings, dtype=np.float64)
        if values.ndim != 2 or 0 in values.shape or not np.isfinite(values).all():
            raise InvalidProblemError(
                f"the embeddings of classes have the shape {values.shape}; give one row of finite numbers for"
                " each class"
            )
        object.__setattr__(self, "embeddings", values)

    @property
    def classes(self) -> int:
        """Number of classes m."""
        return len(self.embeddings)

    def shape(self, d: int) -> tuple[int, int]:
        """Return (d, e)."""
        return d, int(self.embeddings.shape[1])

    def class_weights(self, V: Float64Array) -> Float64Array:
        """Return V times the embeddings of all classes, (d, m)."""
        return np.asarray(V @ self.embeddings.T)

    def summed(self, product: Float64Array) -> Float64Array:
        """Return `product` (d, m) times the embeddings, (d, e)."""
        return np.asarray(product @ self.embeddings)


def is_ordinary(feature_map: FeatureMap) -> bool:
    """Return whether V is W, because psi(x, j) = e_j (x) x."""
    embeddings = feature_map.embeddings if isinstance(feature_map, ClassEmbeddings) else np.empty((0, 0))
    return np.array_equal(embeddings, np.eye(feature_map.classes))


#: Largest size of V, or of W, for which a Hessian is formed.
_MOST_SIDE = 2_896
#: Relative precision of the norm of a map, and the most products spent on it.
_NORM_TO, _NORM_PRODUCTS = 0.01, 50


class MapView:
    """Weights V of a map for rows of d features: W = L V goes to the blocks, and sums return through L^T.

    A change of one row moves the scores of all rows by L L^T of the change that blocks expect.  Blocks that
    change rows on their own multiply the curvature by |L L^T|, which bounds it from above, and the
    coordinator steps along their sum with the exact curvature in V.  For unit vectors the factor is 1.
    """

    def __init__(self, feature_map: FeatureMap, d: int) -> None:
        self._map, self._d = feature_map, d

    def class_weights(self, V: Float64Array) -> Float64Array:
        """Return W = L V (d, m)."""
        return self._map.class_weights(V)

    def summed(self, product: FloatArray) -> Float64Array:
        """Return L^T of a product (d, m), in the shape of V."""
        return self._map.summed(np.asarray(product, dtype=np.float64))

    @property
    def forms_hessians(self) -> bool:
        """Whether a Hessian in V is small enough to be formed."""
        return max(self._d * self._map.classes, int(np.prod(self._map.shape(self._d)))) <= _MOST_SIDE

    @cached_property
    def is_ordinary(self) -> bool:
        """Whether V is W."""
        return is_ordinary(self._map)

    @cached_property
    def norm(self) -> float:
        """The largest eigenvalue of L L^T, by power iteration."""
        W = np.random.default_rng(0).standard_normal((self._d, self._map.classes))
        norm = 0.0
        for _ in range(_NORM_PRODUCTS):
            product = self._map.class_weights(self._map.summed(W))
            norm, before = float(np.vdot(W, product) / np.vdot(W, W)), norm
            if norm - before <= _NORM_TO * norm:
                break
            W = product / np.abs(product).max()
        return norm

    def hessian(self, product: FloatArray) -> Float64Array:
        """Return L^T H L for a Hessian H over pairs of classes (m d, m d), or single classes (m d, d)."""
        sums: Float64Array = np.asarray(product, dtype=np.float64)
        side, d = sums.shape
        if side > d:
            whole = np.zeros((side, side))
            for start in range(0, side, d):
                whole[start : start + d, start : start + d] = sums[start : start + d]
            sums = whole
        return self._summed_columns(self._summed_columns(sums).T).T

    def _summed_columns(self, product: Float64Array) -> Float64Array:
        """Return L^T of every column, class by class in each, with V in the same order."""
        shape = self._map.classes, self._d
        return np.stack([self._map.summed(column.reshape(shape).T).T.ravel() for column in product.T], axis=1)
