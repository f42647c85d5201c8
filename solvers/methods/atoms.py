"""Atoms of Frank-Wolfe: whole matrices U_t, of which the coordinator knows b(U_t) and the Gram matrix.

The dual at A = sum_t w_t U_t, for weights w on the simplex, is at least

    D(w) = <b, w> - 1/2 <w, G w>,   G_st = lam <W(U_s), W(U_t)>,

since -Phi* - (gamma/2)|.|^2 is concave; for the hinges without smoothing it is the dual itself.  Where blocks
keep the vertices, as with a kernel, G includes gamma <U_s, U_t> / n, and smoothing is exact.

A rule gives the atoms new weights when a vertex has joined them.  Sources: S. Lacoste-Julien, M. Jaggi, "On
the global linear convergence of Frank-Wolfe optimization variants", NIPS 2015, with the atoms of the code
that Tajima et al. released: one for all examples together.

The best mixture is found by a primal active set method.  G may be singular: there may be more atoms than
dimensions, or nearly equal ones.  On a face whose atoms are affinely dependent D(w) is linear along some
direction; the method follows it until an atom drops out, which never lowers D.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, TypeAlias

import numpy as np
from scipy.linalg import lapack

from topline.solvers.core.codec import stored
from topline.solvers.typing import Float64Array, Int64Array

_EPS = float(np.finfo(np.float64).eps)
#: Newton steps on one face; those after the first only remove rounding.
_REFINEMENTS = 3


def maximise_on_simplex(gram: Float64Array, linear: Float64Array, start: Float64Array) -> Float64Array:
    """Return the maximiser, found from the point `start` of the simplex; its objective is never below that.

    Parameters
    ----------
    gram : (T, T) symmetric, positive semidefinite up to rounding.
    linear : (T,).
    start : (T,) weights >= 0 with sum 1.  The closer to the answer, the fewer steps.
    """
    best: Float64Array = start / start.sum()
    weights = best
    # Each face is visited at most once except for rounding, and hardly more faces than atoms are visited.
    for _ in range(20 + 4 * len(linear)):
        weights = _to_top_of_face(gram, linear, weights, np.flatnonzero(weights > 0))
        pull = gram @ weights
        gradient = linear - pull
        if rise_between(gram, linear, best, weights) > 0:
            best = weights
        enters = int(np.argmax(gradient))
        rise = gradient[enters] - float(weights @ gradient)
        if not rise > 4.0 * _EPS * (np.abs(linear).max() + np.abs(pull).max()) or weights[enters] > 0:
            break
        face = np.append(np.flatnonzero(weights > 0), enters)
        moved = _to_top_of_face(gram, linear, weights, face)
        if not rise_between(gram, linear, weights, moved) > 0:
            break
        weights = moved
    return best


def rise_between(
    gram: Float64Array, linear: Float64Array, before: Float64Array, after: Float64Array
) -> float:
    """Return the increase of the objective, with far more digits than the difference of objectives."""
    change = after - before
    return float((linear - gram @ before) @ change - 0.5 * (change @ (gram @ change)))


def _to_top_of_face(
    gram: Float64Array, linear: Float64Array, weights: Float64Array, face: Int64Array
) -> Float64Array:
    """Climb on the atoms of a face, dropping those that reach zero, until its maximum lies inside."""
    weights = weights.copy()
    refined = 0
    while len(face) > 1 and refined < _REFINEMENTS:
        gradient = (linear - gram @ weights)[face]
        direction, newton = _step_on_face(gram[np.ix_(face, face)], gradient, weights[face])
        falling = direction < 0
        room = np.full(len(face), np.inf)
        np.divide(weights[face], -direction, out=room, where=falling)
        blocking = int(np.argmin(room))
        length = min(float(room[blocking]), 1.0 if newton else np.inf)
        if not np.isfinite(length):
            break
        weights[face] = np.maximum(weights[face] + length * direction, 0.0)
        if length == room[blocking]:
            weights[face[blocking]] = 0.0
            face = np.delete(face, blocking)
            refined = 0
        else:
            refined += 1
    return np.asarray(weights / weights.sum())


def _step_on_face(
    gram: Float64Array, gradient: Float64Array, weights: Float64Array
) -> tuple[Float64Array, bool]:
    """Return an ascent direction on a face with at least two atoms, and whether its maximum lies there.

    The direction has the sum 0; one that leads to no maximum has no curvature.
    """
    origin = int(np.argmax(weights))
    others = np.delete(np.arange(len(weights)), origin)
    to_origin = gram[others, origin]
    bend = gram[np.ix_(others, others)] - to_origin[:, None] - to_origin[None, :] + gram[origin, origin]
    slope = gradient[others] - gradient[origin]
    noise = 8.0 * _EPS * len(weights) * float(np.max(np.diag(gram)))
    factor, order, rank, _ = lapack.dpstrf(bend, tol=noise, lower=1)
    order = order - 1
    lower = factor[:rank, :rank]
    free = order[:rank]
    change = np.zeros(len(others))
    if rank == len(others):
        change[free] = _solve(lower, slope[free])
        newton = True
    else:
        dependent = order[rank]
        change[dependent] = 1.0
        if rank > 0:
            change[free] = -_solve(lower, bend[free, dependent])
        if slope @ change < 0:
            change = -change
        newton = False
    direction = np.empty(len(weights))
    direction[others] = change
    direction[origin] = -change.sum()
    return direction, newton


def _solve(lower: Float64Array, right: Float64Array) -> Float64Array:
    """Solve L L^T x = right."""
    x, _ = lapack.dpotrs(lower, right, lower=1)
    return np.asarray(x)


#: Limit in bytes for the W of all atoms, and again for the points at which they were found, and on the number
#: of atoms, which keeps G and its equations small.
_BYTES = 1 << 28
_MOST = 1024
#: Least room: the iterate, the new atom, and one more of each kind.
_LEAST = 4
#: Share of the terms of <grad D, U_t> within which two atoms are equally good, and rounding of sums of many.
_TIE = 1e-12
_ROUNDING = 16.0 * float(np.finfo(np.float64).eps)

#: The components of an atom: indices and shares of others; a single index leaves it unchanged.
Parts: TypeAlias = tuple[tuple[int, float], ...]
#: New weights of the atoms, and the reported step.
Reweighted: TypeAlias = tuple[Float64Array, float]


@stored
@dataclass(frozen=True, eq=False)
class Atoms:
    """A set of atoms and the point that they make.

    Attributes
    ----------
    W : (T, d, m) weights of each atom; (T, 0, 0) where blocks keep the vertices.
    conjugate_means : (T,) b(U_t), the linear terms of the dual.
    weights : (T,) >= 0 with sum 1; 0 for a new or idle atom.
    gram : (T, T).
    found_at : (T, d, m) the weights at which each atom is the vertex, NaN for A = 0 and for a merged atom;
        None if not needed, as for the mean risk.
    names : (T,) where blocks keep the vertices, the rounds that found them, -1 for an A that became one.
    """

    W: Float64Array
    conjugate_means: Float64Array
    weights: Float64Array
    gram: Float64Array
    found_at: Float64Array | None = None
    names: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        conjugate_mean: float,
        square: float,
        W: Float64Array,
        found_at: Float64Array | None = None,
        names: tuple[int, ...] = (),
    ) -> Atoms:
        """Return one atom with its b, its entry of G and its W."""
        b, gram = np.array([conjugate_mean]), np.array([[square]])
        return cls(W[None], b, np.ones(1), gram, found_at=found_at, names=names)

    def __len__(self) -> int:
        return len(self.conjugate_means)

    def gradient(self) -> Float64Array:
        """Return <grad D, U_t> for each atom, (T,)."""
        return np.asarray(self.conjugate_means - self.gram @ self.weights)

    def slope_to(self, place: int) -> tuple[float, bool]:
        """Return the slope of D towards an atom, and whether that is more than rounding."""
        gradient = self.gradient()
        slope = float(gradient[place] - gradient @ self.weights)
        return slope, slope > _ROUNDING * self._terms(gradient)

    def point(self) -> tuple[Float64Array, float]:
        """Return W and b of the point, summed anew to avoid drift."""
        T, d, m = self.W.shape
        return (self.weights @ self.W.reshape(T, d * m)).reshape(d, m), float(
            self.weights @ self.conjugate_means
        )

    def with_atom(
        self, lam: float, W: Float64Array, conjugate_mean: float, found_at: Float64Array | None = None
    ) -> tuple[Atoms, int]:
        """Return the atoms with a new one of weight 0, and its index; an existing atom is not duplicated."""
        flat = np.ascontiguousarray(W).ravel()
        products = lam * np.append(self.W.reshape(len(self), -1) @ flat, flat @ flat)
        for t in np.flatnonzero(
            np.isclose(products[:-1], products[-1], rtol=1e-9, atol=0.0)
            & (self.conjugate_means == conjugate_mean)
        ):
            if np.array_equal(self.W[t], W):
                return self, int(t)
        more = self.grown(products, conjugate_mean, W)
        if self.found_at is not None:
            point = np.full_like(W, np.nan) if found_at is None else found_at
            more = replace(more, found_at=np.concatenate([self.found_at, point[None]]))
        return more, len(self)

    def grown(
        self, products: Float64Array, conjugate_mean: float, W: Float64Array, name: int | None = None
    ) -> Atoms:
        """Return the atoms with a new one of weight 0; `products` is its column of G, its own square last."""
        gram = np.empty((len(products), len(products)))
        gram[:-1, :-1], gram[-1], gram[:, -1] = self.gram, products, products
        return replace(
            self,
            W=np.concatenate([self.W, np.ascontiguousarray(W)[None]]),
            conjugate_means=np.append(self.conjugate_means, conjugate_mean),
            weights=np.append(self.weights, 0.0),
            gram=gram,
            names=self.names if name is None else (*self.names, name),
        )

    def weighted(self, weights: Float64Array, idle: int = 0) -> Atoms:
        """Return the atoms with new weights, reduced as `to_keep` says."""
        return self.mixed(weights, self.to_keep(weights, idle, most_atoms(*self.W.shape[1:])))

    def to_keep(self, weights: Float64Array, idle: int, most: int) -> Sequence[Parts]:
        """Return what to keep: atoms in use and the newest `idle` others, as far as there is room.

        If more than `most` are in use the two lightest are merged into their convex combination, which is an
        atom too.
        """
        unused = np.flatnonzero(weights == 0)
        room = int(np.clip(most - (len(weights) - len(unused)), 0, idle))
        places = np.delete(np.arange(len(weights)), unused[: max(len(unused) - room, 0)])
        parts: list[Parts] = [((int(place), 1.0),) for place in places]
        if len(parts) > most:
            first, second = np.sort(np.argsort(weights[places], kind="stable")[:2])
            together = float(weights[places[first]] + weights[places[second]])
            both = [int(places[first]), int(places[second])]
            parts[first] = tuple((place, float(weights[place]) / together) for place in both)
            del parts[second]
        return parts

    def mixed(self, weights: Float64Array, kept: Sequence[Parts]) -> Atoms:
        """Return the kept atoms, with their weights added up."""
        if len(kept) == len(self):
            return replace(self, weights=weights)
        first = [parts[0][0] for parts in kept]
        several = [(place, parts) for place, parts in enumerate(kept) if len(parts) > 1]

        def taken(values: Float64Array) -> Float64Array:
            result = values[first]
            for place, parts in several:
                result[place] = sum(share * values[part] for part, share in parts)
            return result

        found_at = None if self.found_at is None else self.found_at[first]
        if found_at is not None:
            found_at[[place for place, _ in several]] = np.nan
        return Atoms(
            W=taken(self.W),
            conjugate_means=taken(self.conjugate_means),
            weights=np.array([sum(weights[part] for part, _ in parts) for parts in kept]),
            # Rows, then columns: as the Gram matrix is symmetric, both are taken as rows.
            gram=np.ascontiguousarray(taken(np.ascontiguousarray(taken(self.gram).T))),
            found_at=found_at,
            names=tuple(self.names[place] for place in first) if self.names else (),
        )

    def cuts(self) -> tuple[Float64Array, Float64Array] | None:
        """Return the W at which the atoms in use are vertices (T, d, m), and their weights (T,).

        With the examples they reproduce the dual point.  A = 0 is left out, so the weights sum to at most 1;
        None if an atom has no such W.
        """
        used = (self.weights > 0) & ((self.conjugate_means != 0) | self.W.any(axis=(1, 2)))
        if self.found_at is None or not np.isfinite(self.found_at[used]).all():
            return None
        return self.found_at[used], self.weights[used]

    def worst(self, gradient: Float64Array) -> int:
        """Return the index of the atom in use with the smallest <grad D, U_t>, the oldest in a tie.

        An exact step leaves both ends of its segment equal, and rounding must not choose between them.
        """
        used = np.where(self.weights > 0, gradient, np.inf)
        return int(np.argmax(used <= used.min() + _TIE * self._terms(gradient)))

    def _terms(self, gradient: Float64Array) -> float:
        """Return the size of the terms of <grad D, U_t>."""
        pull = self.conjugate_means - gradient
        return float(np.abs(self.conjugate_means).max() + np.abs(pull).max())


class AtomRule(Protocol):
    """The update of the atoms' weights when the one at `newest` is the Frank-Wolfe vertex."""

    #: Number of weightless atoms kept for possible reuse.
    idle: ClassVar[int]

    def reweigh(self, atoms: Atoms, newest: int, /) -> Reweighted:
        """Return new weights (T,) on the simplex, and the step."""
        ...


@dataclass(frozen=True)
class AwaySteps:
    """Move towards the vertex, or away from the worst atom, whichever rises more steeply."""

    idle: ClassVar[int] = 0

    def reweigh(self, atoms: Atoms, newest: int) -> Reweighted:
        """Return new weights (T,) on the simplex, and the step."""
        gradient, w = atoms.gradient(), atoms.weights
        worst = atoms.worst(gradient)
        mean = float(gradient @ w)
        if gradient[newest] - mean >= mean - gradient[worst] or w[worst] >= 1.0:
            direction = -w
            direction[newest] += 1.0
            return _step_along(atoms, gradient, direction, newest, 1.0)
        direction = w.copy()
        direction[worst] -= 1.0
        return _step_along(atoms, gradient, direction, worst, w[worst] / (1.0 - w[worst]))


@dataclass(frozen=True)
class PairwiseSteps:
    """Move weight from the worst atom to the vertex."""

    idle: ClassVar[int] = 0

    def reweigh(self, atoms: Atoms, newest: int) -> Reweighted:
        """Return new weights (T,) on the simplex, and the step."""
        gradient = atoms.gradient()
        worst = atoms.worst(gradient)
        direction = np.zeros(len(atoms.weights))
        direction[newest] += 1.0
        direction[worst] -= 1.0
        return _step_along(atoms, gradient, direction, worst, float(atoms.weights[worst]))


@dataclass(frozen=True)
class FullyCorrective:
    """Maximise D over the weights of all atoms; the step is the weight that the vertex gets.

    Thirty idle atoms save a sixth of the passes on digits; more have no effect.
    """

    idle: ClassVar[int] = 30

    def reweigh(self, atoms: Atoms, newest: int) -> Reweighted:
        """Return new weights (T,) on the simplex, and the step."""
        weights = maximise_on_simplex(atoms.gram, atoms.conjugate_means, atoms.weights)
        return weights, float(weights[newest])


def most_atoms(d: int, m: int) -> int:
    """Return the number of atoms (d, m) that are kept: 256 MiB of them, and 1024 at most."""
    return int(np.clip(_BYTES // max(8 * d * m, 1), _LEAST, _MOST))


def _step_along(
    atoms: Atoms, gradient: Float64Array, direction: Float64Array, leaving: int, longest: float
) -> Reweighted:
    """Maximise D along a direction of the weights; the longest step removes the atom `leaving`.

    For a step towards the vertex, which removes every other atom at its end, `leaving` is the vertex.
    """
    slope = float(gradient @ direction)
    curvature = float(direction @ (atoms.gram @ direction))
    step = longest if slope >= curvature * longest else max(slope, 0.0) / curvature
    weights = np.maximum(atoms.weights + step * direction, 0.0)
    if step == longest and direction[leaving] < 0:
        weights[leaving] = 0.0
    return weights / weights.sum(), step
