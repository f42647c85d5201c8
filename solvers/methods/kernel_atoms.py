"""Away steps, pairwise steps and full correction on a kernel matrix that nobody holds.

The rules are those of whole-matrix atoms (`topline.solvers.methods.active_set`).  Here an atom is its
vertices and their scores, which the blocks keep; the coordinator knows b(U_t), the weights and the Gram
matrix G_st = <U_s, K U_t> / (lam n^2) + gamma <U_s, U_t> / n alone.  With A at hand smoothing is exact.
Where a block lacks an atom, as after a worker was lost, A itself becomes the one atom to go on from.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from topline.solvers.core.codec import stored
from topline.solvers.core.problem import Problem
from topline.solvers.methods.active_set import AtomRule
from topline.solvers.methods.base import Advance, Measurement
from topline.solvers.methods.kernel_frank_wolfe import KernelFrankWolfe
from topline.solvers.methods.kernel_scores import KernelMemory, mark_of, refuse_stale
from topline.solvers.methods.simplex_qp import rise_between
from topline.solvers.operations import Runner
from topline.solvers.operations.kernel import MultiplyAtoms, ReweighAtoms
from topline.solvers.typing import Float64Array

#: Bytes that the atoms of all blocks may take together, and how many there may be.
ATOM_BYTES = 1 << 28
_FEWEST, _MOST = 4, 1024
#: Rounding of a sum of many terms, as a share of their size.
_ROUNDING = 16.0 * float(np.finfo(np.float64).eps)


@stored
@dataclass(frozen=True, eq=False)
class KernelAtoms:
    """Atoms by the rounds in which they were found, -1 for an A that became one.

    Attributes
    ----------
    names : (T,) the rounds.
    conjugate_means, weights : (T,) b(U_t), and the weights of the mixture A.
    gram : (T, T).
    made : what each is made of, by name and share; one name where it is as it was.
    """

    names: tuple[int, ...]
    conjugate_means: Float64Array
    weights: Float64Array
    gram: Float64Array
    made: tuple[tuple[tuple[int, float], ...], ...] = field(default=())

    def with_atom(self, name: int, conjugate_mean: float, products: Float64Array) -> KernelAtoms:
        """Return the atoms with one more of weight 0; `products` is its column of G, its own square last."""
        size = len(self.names)
        gram = np.empty((size + 1, size + 1))
        gram[:-1, :-1], gram[-1], gram[:, -1] = self.gram, products, products
        names = (*self.names, name)
        return KernelAtoms(
            names,
            np.append(self.conjugate_means, conjugate_mean),
            np.append(self.weights, 0.0),
            gram,
            made=tuple(((name, 1.0),) for name in names),
        )

    def weighted(self, weights: Float64Array, idle: int, most: int) -> KernelAtoms:
        """Give other weights; keep `idle` of weight 0, and mix the two lightest beyond `most` atoms."""
        kept = weights > 0
        unused = np.flatnonzero(~kept)
        room = min(idle, max(most - int(kept.sum()), 0))
        kept[unused[len(unused) - min(room, len(unused)) :]] = True
        places = np.flatnonzero(kept)
        shares = np.eye(len(weights))[places]
        if len(places) > most:
            first, second = np.sort(places[np.argsort(weights[places], kind="stable")[:2]])
            together = weights[first] + weights[second]
            shares[np.searchsorted(places, first), [first, second]] = (
                weights[first] / together, weights[second] / together,
            )  # fmt: skip
            shares = np.delete(shares, np.searchsorted(places, second), axis=0)
            places = np.delete(places, np.searchsorted(places, second))
            weights = weights.copy()
            weights[first] = together
        return KernelAtoms(
            tuple(self.names[place] for place in places),
            shares @ self.conjugate_means,
            weights[places],
            shares @ self.gram @ shares.T,
            made=tuple(
                tuple((self.names[part], float(row[part])) for part in np.flatnonzero(row)) for row in shares
            ),
        )


@dataclass(frozen=True)
class KernelAtomFrankWolfe(KernelFrankWolfe):
    """Frank-Wolfe on a kernel with a memory of its atoms, which `rule` weighs."""

    rule: AtomRule = field(kw_only=True)

    def advance(self, problem: Problem, run: Runner, measured: Measurement) -> Advance:
        """Find the vertices, take them among the atoms, and give these new weights."""
        before, mark, memory = (
            measured.before,
            mark_of(measured.before),
            measured.before.recalled(KernelMemory),
        )
        found, parts, columns = self._vertices(problem, run, before)
        asked: dict[str, Any] = {
            "kernel": self.kernel, "mark": mark, "exact": before.point.exact, "parts": parts
        }  # fmt: skip
        atoms, stats = memory.atoms, None
        if isinstance(atoms, KernelAtoms):
            stats = run(MultiplyAtoms(**asked, atoms=atoms.names))
        if not isinstance(atoms, KernelAtoms) or stats is None or stats.stale:
            atoms = _itself(problem, measured)
            stats = run(MultiplyAtoms(**asked, atoms=atoms.names, anew=True))
            refuse_stale(stats)
        products, name = stats.products / problem.n, before.round
        atoms = atoms.with_atom(name, found.conjugate_u / problem.n, products)
        newest = len(atoms.names) - 1
        weights, step = self.rule.reweigh(atoms, newest) if _rises(atoms) else (atoms.weights, 0.0)
        stuck = not rise_between(atoms.gram, atoms.conjugate_means, atoms.weights, weights) > 0
        kept = atoms.weighted(atoms.weights if stuck else weights, self.rule.idle, most_atoms(problem))
        refuse_stale(
            run(
                ReweighAtoms(
                    **asked,
                    newest=name,
                    kept=tuple(zip(kept.names, kept.made, strict=True)),
                    weights=tuple(
                        (name, float(w)) for name, w in zip(kept.names, kept.weights, strict=True) if w > 0
                    ),
                    after=replace(mark, round=mark.round + 1),
                )
            )
        )
        memory = replace(memory, vertices=mark, atoms=replace(kept, made=()))
        return self._stepped(problem, measured, found, memory, columns, step, stuck=stuck)


def _itself(problem: Problem, measured: Measurement) -> KernelAtoms:
    """Return A as the one atom."""
    point = measured.before.point
    square = measured.stats.alpha_s / problem.n + problem.smoothing * point.mean_sq_dual
    return KernelAtoms((-1,), np.array([point.conjugate_mean]), np.ones(1), np.array([[square]]))


def _rises(atoms: KernelAtoms) -> bool:
    """Return whether D rises towards the newest atom, beyond the rounding of the slope."""
    pull = atoms.gram @ atoms.weights
    gradient = atoms.conjugate_means - pull
    terms = np.abs(atoms.conjugate_means).max() + np.abs(pull).max()
    return bool(gradient[-1] - gradient @ atoms.weights > _ROUNDING * terms)


def most_atoms(problem: Problem) -> int:
    """Return how many atoms there are at most."""
    return int(np.clip(ATOM_BYTES // _bytes_of_one(problem), _FEWEST, _MOST))


def atom_bytes(problem: Problem) -> int:
    """Return what all atoms take at most, wherever the blocks are."""
    return most_atoms(problem) * _bytes_of_one(problem)


def _bytes_of_one(problem: Problem) -> int:
    """Return the bytes of scores in float32, and of what is not zero in vertices."""
    entries = len(problem.form.rho) + 1 if problem.form.sparse_vertices else problem.m
    return problem.n * (4 * problem.m + 8 * min(entries, problem.m))
