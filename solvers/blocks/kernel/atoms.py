"""Atoms of a block of a kernel: vertices U_t of all its rows, with their scores T_t = K U_t / (lam n).

The mixture A = sum_t w_t U_t has the scores S = sum_t w_t T_t, so that other weights need no kernel value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy import sparse

from topline.solvers.blocks.block import Block
from topline.solvers.typing import Float64Array, FloatArray

#: Shares of atoms by their names.
Mixture: TypeAlias = Iterable[tuple[int, float]]


class _Atom(NamedTuple):
    vertices: sparse.csr_matrix
    scores: FloatArray


class BlockAtoms:
    """The atoms of one block by their names."""

    def __init__(self) -> None:
        self._atoms: dict[int, _Atom] = {}

    def forget(self) -> None:
        """Let go of all atoms, as where they would be of another precision from now on."""
        self._atoms = {}

    def lacks(self, names: Iterable[int]) -> bool:
        """Whether some of these are not here."""
        return any(name not in self._atoms for name in names)

    def become(self, name: int, S: FloatArray, block: Block) -> None:
        """Let A, with its scores S, be the only atom."""
        duals = block.duals.A
        rows = [sparse.csr_matrix(duals.read(start, stop)) for _, start, stop in block.tiles.bounds()]
        self._atoms = {name: _Atom(sparse.csr_matrix(sparse.vstack(rows, format="csr")), S.copy())}

    def products(self, names: Sequence[int], U: FloatArray, T: FloatArray, block: Block) -> Float64Array:
        """Return sum <t_i, u_i>, with smoothing, of these atoms with new vertices U, and of U with its T."""
        sums, problem = np.zeros(len(names) + 1), block.problem
        for _, start, stop in block.tiles.bounds():
            rows = slice(start, stop)
            y, weights = block.tiles.labels_and_weights(rows)
            of_smoothing = U[rows].astype(np.float64) * problem.smoothing
            if problem.own_share != 1.0:
                of_smoothing[np.arange(len(y)), y] *= problem.own_share
            for place, name in enumerate(names):
                atom = self._atoms[name]
                with_scores = np.einsum("ij,ij->i", atom.scores[rows], U[rows], dtype=np.float64)
                if problem.smoothing > 0:
                    with_scores += np.asarray(atom.vertices[rows].multiply(of_smoothing).sum(axis=1)).ravel()
                sums[place] += float(with_scores @ weights)
            own = np.einsum("ij,ij->i", T[rows], U[rows], dtype=np.float64)
            sums[-1] += float((own + np.einsum("ij,ij->i", of_smoothing, U[rows])) @ weights)
        return sums

    def add(self, name: int, U: FloatArray, T: FloatArray) -> None:
        """Take vertices U with their scores T among the atoms."""
        self._atoms[name] = _Atom(sparse.csr_matrix(U), T.copy())

    def keep(self, kept: Iterable[tuple[int, Mixture]]) -> None:
        """Make of the atoms what is to be kept."""
        self._atoms = {name: self._mixed(parts) for name, parts in kept}

    def weigh(self, weights: Sequence[tuple[int, float]], S: FloatArray, block: Block) -> None:
        """Make A and its scores S those of a mixture of the atoms."""
        S[:] = 0.0
        for name, share in weights:
            S += np.asarray(share * self._atoms[name].scores, dtype=S.dtype)
        duals = block.duals.A
        for _, start, stop in block.tiles.bounds():
            A = np.zeros((stop - start, block.problem.m))
            for name, share in weights:
                A += share * self._atoms[name].vertices[start:stop].toarray()
            duals.write(start, stop, A.astype(duals.dtype))

    def _mixed(self, parts: Mixture) -> _Atom:
        """Return the mixture of some atoms; one alone as it is."""
        shares = list(parts)
        if len(shares) == 1:
            return self._atoms[shares[0][0]]
        (first, share), *others = shares
        vertices, scores = share * self._atoms[first].vertices, share * self._atoms[first].scores
        for name, share in others:
            vertices = vertices + share * self._atoms[name].vertices
            scores = scores + share * self._atoms[name].scores
        dtype = self._atoms[first].scores.dtype
        return _Atom(sparse.csr_matrix(vertices, dtype=dtype), np.asarray(scores, dtype=dtype))
