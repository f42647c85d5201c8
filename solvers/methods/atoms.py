"""Atoms of the dual-free Frank-Wolfe variants: whole matrices U_t, known by W(U_t) and b(U_t) alone.

Without A the dual at A = sum_t w_t U_t, for weights w on the simplex, is bounded from below by

    D(w) = <b, w> - 1/2 <w, G w>,   G_st = lam <W_s, W_t>,

since -Phi* - (gamma/2)|.|^2 is concave; for the hinges without smoothing it is the dual itself.  The first
atom is A = 0, with W = 0 and b = 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from topline.solvers.core.codec import stored
from topline.solvers.core.problem import Problem
from topline.solvers.core.state import SolverState
from topline.solvers.typing import Float64Array

#: Bytes that the W of all atoms may take, and again the points at which they were found, and how many atoms
#: there may be: G and its equations stay small.
_BYTES = 1 << 28
_MOST = 1024
#: There is room for the iterate, the new atom, and one more of each kind in any case.
_LEAST = 4


@stored
@dataclass(frozen=True, eq=False)
class Atoms:
    """A set of atoms and the point that they make.

    Attributes
    ----------
    W : (T, d, m) weights of each atom.
    conjugate_means : (T,) b(U_t), the linear terms of the dual.
    weights : (T,) >= 0 with sum 1; 0 for an atom that has just come, or idles.
    gram : (T, T) lam <W_s, W_t>.
    found_at : (T, d, m) the weights at which each atom is the vertex, NaN for A = 0 and for an atom that is
        several; None where nobody asks, as for the mean risk.
    """

    W: Float64Array
    conjugate_means: Float64Array
    weights: Float64Array
    gram: Float64Array
    found_at: Float64Array | None = None

    @classmethod
    def of(cls, problem: Problem, state: SolverState) -> Atoms:
        """Return the point of a state as the one atom."""
        point = state.point
        W = point.W[None]
        linear = np.array([point.conjugate_mean - 0.5 * problem.smoothing * point.mean_sq_dual])
        gram = problem.lam * _inner_products(W, point.W)[:, None]
        found_at = None if problem.mean_risk else np.full_like(W, np.nan)
        return cls(W=W, conjugate_means=linear, weights=np.ones(1), gram=gram, found_at=found_at)

    def __len__(self) -> int:
        return len(self.conjugate_means)

    def gradient(self) -> Float64Array:
        """Return <grad D, U_t> for each atom, (T,)."""
        return np.asarray(self.conjugate_means - self.gram @ self.weights)

    def point(self) -> tuple[Float64Array, float]:
        """Return W and b of the point, summed afresh so that nothing drifts."""
        T, d, m = self.W.shape
        return (self.weights @ self.W.reshape(T, d * m)).reshape(d, m), float(
            self.weights @ self.conjugate_means
        )

    def with_atom(
        self, lam: float, W: Float64Array, conjugate_mean: float, found_at: Float64Array | None = None
    ) -> tuple[Atoms, int]:
        """Return the atoms with one more of weight 0, and its place; an atom that is there stays alone.

        Where they are full, the two lightest atoms become their own convex combination before.
        """
        products = lam * _inner_products(self.W, W)
        square = lam * float(np.vdot(W, W))
        for t in np.flatnonzero(
            np.isclose(products, square, rtol=1e-9, atol=0.0) & (self.conjugate_means == conjugate_mean)
        ):
            if np.array_equal(self.W[t], W):
                return self, int(t)
        if len(self) >= most_atoms(*W.shape):
            return self._merged().with_atom(lam, W, conjugate_mean, found_at)
        gram = np.empty((len(self) + 1, len(self) + 1))
        gram[:-1, :-1] = self.gram
        gram[-1, :-1] = gram[:-1, -1] = products
        gram[-1, -1] = square
        point = np.full_like(W, np.nan) if found_at is None else found_at
        more = Atoms(
            W=np.concatenate([self.W, np.ascontiguousarray(W)[None]]),
            conjugate_means=np.append(self.conjugate_means, conjugate_mean),
            weights=np.append(self.weights, 0.0),
            gram=gram,
            found_at=None if self.found_at is None else np.concatenate([self.found_at, point[None]]),
        )
        return more, len(self)

    def weighted(self, weights: Float64Array, idle: int = 0) -> Atoms:
        """Give other weights to the atoms; of those with weight 0 only the newest `idle` are kept."""
        kept = weights > 0
        unused = np.flatnonzero(~kept)
        kept[unused[max(len(unused) - idle, 0) :]] = True
        if kept.all():
            return replace(self, weights=weights)
        found_at = None if self.found_at is None else self.found_at[kept]
        return Atoms(
            self.W[kept],
            self.conjugate_means[kept],
            weights[kept],
            self.gram[np.ix_(kept, kept)],
            found_at=found_at,
        )

    def cuts(self) -> tuple[Float64Array, Float64Array] | None:
        """Return the W at which the atoms in use are vertices (T, d, m), and their weights (T,).

        They and the examples make the dual point again.  A = 0 is left out, so that the weights sum to at
        most 1; None where an atom is not known by such a W.
        """
        used = (self.weights > 0) & ((self.conjugate_means != 0) | self.W.any(axis=(1, 2)))
        if self.found_at is None or not np.isfinite(self.found_at[used]).all():
            return None
        return self.found_at[used], self.weights[used]

    def _merged(self) -> Atoms:
        """Put the convex combination of the two lightest atoms into the place of the first of them.

        An idle atom, the oldest, goes instead where there is one.
        """
        if (self.weights == 0).any():
            return self.weighted(self.weights, idle=int(np.sum(self.weights == 0)) - 1)
        lightest = np.sort(np.argsort(self.weights, kind="stable")[:2])
        first, second = int(lightest[0]), int(lightest[1])
        together = float(self.weights[lightest].sum())
        shares = self.weights[lightest] / together

        def mixed(values: Float64Array) -> Float64Array:
            less = np.delete(values, second, axis=0)
            less[first] = np.tensordot(shares, values[lightest], axes=1)
            return less

        weights = np.delete(self.weights, second)
        weights[first] = together
        # Rows, then columns: the Gram matrix is symmetric, so that both are rows.
        gram = np.ascontiguousarray(mixed(np.ascontiguousarray(mixed(self.gram).T)))
        found_at = self.found_at
        if found_at is not None:
            found_at = np.delete(found_at, second, axis=0)
            found_at[first] = np.nan
        return Atoms(
            W=mixed(self.W),
            conjugate_means=mixed(self.conjugate_means),
            weights=weights,
            gram=gram,
            found_at=found_at,
        )


def most_atoms(d: int, m: int) -> int:
    """Return the number of atoms (d, m) that are kept: 256 MiB of them, and 1024 at most."""
    return int(np.clip(_BYTES // (8 * d * m), _LEAST, _MOST))


def _inner_products(atoms: Float64Array, W: Float64Array) -> Float64Array:
    """Return <W_t, W> for each atom, (T,)."""
    return np.asarray(atoms.reshape(len(atoms), -1) @ np.ascontiguousarray(W).ravel())
