"""Threads that work on one tile together: its products and its rows, in pieces.

How a tile is cut depends on its size alone, so that no number depends on how many threads there are.
Whoever has nothing else to do takes the next piece, and nobody waits for a thread that has not begun: on a
busy machine the one that asked does all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from itertools import count
from typing import Any

import numpy as np

from topline.solvers.narrow_products import add_rows_times, is_narrow
from topline.solvers.typing import Float64Array, FloatArray

#: Multiplications of a product, and numbers in rows, that a piece has at least: some tenths of a millisecond
#: of work, beside which waking a thread is short.
_LEAST_PRODUCT, _LEAST_ROWS = 1 << 23, 1 << 16
#: Pieces of a tile at most, and columns that a piece of a product has at least and a multiple of: every piece
#: reads all rows of the tile.  Two pieces may have fewer columns than more of them.
_MOST_PIECES, _LEAST_COLUMNS, _LEAST_OF_TWO, _MULTIPLE = 8, 64, 32, 4


class Crew:
    """So many threads, the one that asks included; the others are those of `pool`."""

    def __init__(self, threads: int = 1, pool: Callable[[int], Executor] | None = None) -> None:
        self._others = 0 if pool is None else threads - 1
        self._pool = pool

    @property
    def threads(self) -> int:
        """How many threads there are."""
        return self._others + 1

    def each(self, work: Callable[[slice], None], pieces: Sequence[slice]) -> None:
        """Do every piece of some work, in any order."""
        others = min(self._others, len(pieces) - 1)
        if others <= 0 or self._pool is None:
            for piece in pieces:
                work(piece)
            return
        numbers = count()

        def take() -> None:
            # NumPy's settings are those of a thread.
            with np.errstate(over="ignore", invalid="ignore"):
                while (number := next(numbers)) < len(pieces):
                    work(pieces[number])

        pool = self._pool(others)
        begun = [pool.submit(take) for _ in range(others)]
        try:
            take()
        finally:
            wait([helper for helper in begun if not helper.cancel()])
        for helper in begun:
            if not helper.cancelled():
                helper.result()

    def product(self, X: Any, W: FloatArray) -> FloatArray:
        """Return X W (b, m)."""
        if not isinstance(X, np.ndarray):
            return np.asarray(X @ W)
        out = np.empty((X.shape[0], W.shape[1]), dtype=np.result_type(X, W))
        self.multiply(X, W, out)
        return out

    def multiply(self, X: FloatArray, W: FloatArray, out: FloatArray) -> None:
        """Write X W (b, m) of dense rows to `out`."""
        pieces = columns_of(W.shape[1], X.shape[0] * W.size)
        if len(pieces) == 1:
            np.dot(X, W, out=out)
            return

        def multiply(piece: slice) -> None:
            np.matmul(X, W[:, piece], out=out[:, piece])

        self.each(multiply, pieces)

    def add_product(self, U: FloatArray, X: Any, product: Float64Array) -> None:
        """Add U^T X of some rows to `product` (m, d)."""
        if not isinstance(X, np.ndarray):
            product += (X.T @ U).T
            return

        if is_narrow(X, U.shape[1]):
            add_rows_times(U, X, product)
            return

        def add(piece: slice) -> None:
            product[piece] += U[:, piece].T @ X

        self.each(add, columns_of(U.shape[1], U.size * X.shape[1]))

    def add_rows(
        self, work: Callable[[slice, Float64Array], None], rows: int, width: int, sums: Float64Array
    ) -> None:
        """Let `work` add what parts of the rows, of `width` numbers each, sum to; parts add up in order."""
        pieces = rows_of(rows, width)
        if len(pieces) == 1:
            work(pieces[0], sums)
            return
        parts = {piece.start: np.zeros_like(sums) for piece in pieces}
        self.each(lambda piece: work(piece, parts[piece.start]), pieces)
        for piece in pieces:
            sums += parts[piece.start]


class Helpers:
    """Threads that work for others, begun when they are first asked for and kept with their owner.

    Several may share them that never ask for more than somebody has asked for before.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._most = 0

    def pool(self, threads: int) -> ThreadPoolExecutor:
        """Return a pool of at least so many threads."""
        if self._pool is None or threads > self._most:
            if self._pool is not None:
                self._pool.shutdown(wait=False)
            self._pool = ThreadPoolExecutor(threads, thread_name_prefix="topline-helper")
            self._most = threads
        return self._pool


#: The thread that asks, alone.
ALONE = Crew()


def columns_of(m: int, multiplications: int) -> list[slice]:
    """Return the pieces of the columns of a product of so many multiplications."""
    by_columns = max(m // _LEAST_COLUMNS, min(m // _LEAST_OF_TWO, 2))
    return _cut(m, min(_MOST_PIECES, by_columns, multiplications // _LEAST_PRODUCT), _MULTIPLE)


def rows_of(rows: int, width: int) -> list[slice]:
    """Return the pieces of some rows of so many numbers."""
    return _cut(rows, min(_MOST_PIECES, rows * width // _LEAST_ROWS), 1)


def _cut(length: int, pieces: int, multiple: int) -> list[slice]:
    """Return about so many slices of one length, a multiple, but for the last."""
    if pieces <= 1:
        return [slice(0, length)]
    step = -(-length // (pieces * multiple)) * multiple
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]
