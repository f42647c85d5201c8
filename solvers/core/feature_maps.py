"""Joint features psi(x, j) of an example and a class, for problems whose classes share weights.

A class scores <V, psi(x, j)>, and V takes the place of W in P and D.  What blocks of rows need of a map are
two products: the weights W (d, m) by which a row scores x^T W, and the way back from sum_i x_i u_i^T (d, m).
With psi(x, j) = e_j (x) x they are V and the sum themselves, and the problem is the ordinary one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from topline.solvers.errors import InvalidProblemError
from topline.solvers.typing import Float64Array


@runtime_checkable
class FeatureMap(Protocol):
    """Joint features that are linear in x, by their products.

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
    """psi(x, j) = x c_j^T for what is known of the classes: row j of `embeddings` (m, e), such as of a text.

    V (d, e) gives class j the weights V c_j, also a class that no example was seen of.  Raises
    InvalidProblemError where the embeddings are no matrix of finite numbers.

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
        """Return a sum over classes of what they were given times their embeddings, (d, e)."""
        return np.asarray(product @ self.embeddings)


def is_ordinary(feature_map: FeatureMap) -> bool:
    """Return whether V is W, because psi(x, j) = e_j (x) x."""
    embeddings = feature_map.embeddings if isinstance(feature_map, ClassEmbeddings) else np.empty((0, 0))
    return np.array_equal(embeddings, np.eye(feature_map.classes))
