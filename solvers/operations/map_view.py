"""How blocks that know the weights of the classes look from the weights of a feature map."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from topline.solvers.core.feature_maps import FeatureMap, is_ordinary
from topline.solvers.typing import Float64Array, FloatArray

#: Numbers in V, or in W, up to which a Hessian is formed.
_MOST_SIDE = 2_896
#: The norm of a map is found to this share, in at most so many products.
_NORM_TO, _NORM_PRODUCTS = 0.01, 50


class MapView:
    """Weights V of a map for rows of d features: W = L V goes to the blocks, and sums come back through L^T.

    A change of one row moves the scores of all rows by L L^T of what the blocks expect.  Blocks that change
    rows by themselves take the curvature for |L L^T| times theirs, which is the curvature of an upper bound,
    and the coordinator steps along their sum by that of V.  For unit vectors the factor is 1.
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
        """The largest eigenvalue of L L^T, by powers of it."""
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
        """Return L^T H L of the sums H of pairs of classes (m d, m d), or of single classes (m d, d)."""
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
