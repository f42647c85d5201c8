"""Atoms of a block of a kernel: vertices U_t of all its rows, with their scores T_t = K U_t / (lam n).

The mixture A = sum_t w_t U_t has the scores S = sum_t w_t T_t, so that other weights need no kernel value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy import sparse

from topline.solvers.blocks.duals import BlockDuals
from topline.solvers.core.answers import BlockStats
from topline.solvers.core.clock import Clock
from topline.solvers.core.kernel_rows import AtomRequest, ReweighRequest
from topline.solvers.core.problem import Problem
from topline.solvers.core.tiles import TileReader
from topline.solvers.typing import FloatArray

#: Shares of atoms by their names.
Mixture: TypeAlias = Iterable[tuple[int, float]]


class _Atom(NamedTuple):
    vertices: sparse.csr_matrix
    scores: FloatArray


class BlockAtoms:
    """The atoms of one block by their names."""

    def __init__(self, problem: Problem, tiles: TileReader) -> None:
        self._problem, self._tiles = problem, tiles
        self._atoms: dict[int, _Atom] = {}

    def forget(self) -> None:
        """Let go of all atoms, as where they would be of another precision from now on."""
        self._atoms = {}

    def lacks(self, names: Iterable[int]) -> bool:
        """Whether some of these are not here."""
        return any(name not in self._atoms for name in names)

    def become(self, name: int, S: FloatArray, duals: BlockDuals) -> None:
        """Let A, with its scores S, be the only atom."""
        rows = [sparse.csr_matrix(duals.A.read(start, stop)) for _, start, stop in self._tiles.bounds()]
        self._atoms = {name: _Atom(sparse.csr_matrix(sparse.vstack(rows, format="csr")), S.copy())}

    def products(self, request: AtomRequest, U: FloatArray, T: FloatArray) -> BlockStats:
        """Sum <t_i, u_i>, and what smoothing adds, of every atom with new vertices U, and of U with its T."""
        clock, sums = Clock(), np.zeros((len(request.atoms) + 1, 1))
        for _, start, stop in self._tiles.bounds():
            rows = slice(start, stop)
            y, weights = self._tiles.labels_and_weights(rows)
            of_smoothing = U[rows].astype(np.float64) * self._problem.smoothing
            of_smoothing[np.arange(len(y)), y] *= self._problem.own_share
            for place, name in enumerate(request.atoms):
                atom = self._atoms[name]
                with_scores = np.einsum("ij,ij->i", atom.scores[rows], U[rows], dtype=np.float64)
                if self._problem.smoothing > 0:
                    with_scores += np.asarray(atom.vertices[rows].multiply(of_smoothing).sum(axis=1)).ravel()
                sums[place, 0] += float(with_scores @ weights)
            own = np.einsum("ij,ij->i", T[rows], U[rows], dtype=np.float64)
            sums[-1, 0] += float((own + np.einsum("ij,ij->i", of_smoothing, U[rows])) @ weights)
        clock.row_work()
        return BlockStats(rows=len(U), product=sums, **clock.seconds())

    def reweigh(
        self, request: ReweighRequest, U: FloatArray, T: FloatArray, S: FloatArray, duals: BlockDuals
    ) -> BlockStats:
        """Take new vertices among the atoms, make of them what is to be kept, and A and S of its mixture."""
        clock = Clock()
        self._atoms[request.newest] = _Atom(sparse.csr_matrix(U), T.copy())
        self._atoms = {name: self._mixed(parts) for name, parts in request.kept}
        S[:] = 0.0
        for name, share in request.weights:
            S += np.asarray(share * self._atoms[name].scores, dtype=S.dtype)
        for _, start, stop in self._tiles.bounds():
            A = np.zeros((stop - start, self._problem.m))
            for name, share in request.weights:
                A += share * self._atoms[name].vertices[start:stop].toarray()
            duals.A.write(start, stop, A.astype(duals.A.dtype))
        clock.row_work()
        return BlockStats(rows=len(S), **clock.seconds())

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
