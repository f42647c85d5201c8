"""Threads that work on one tile together, limits on threads per job and in BLAS, and narrow products.

How a tile is cut depends on its size alone, so results do not depend on the number of threads.  Idle threads
take the next piece, and nobody waits for a thread that has not started: on a busy machine the caller does all
pieces itself.

Of products of many rows with few columns BLAS spends most of its time packing the rows: here groups of rows
and columns share their loads, and their sums stay in registers.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from topline.solvers.jit_cache import fetch, jit
from topline.solvers.typing import Float64Array, FloatArray

#: Rows and columns of a group.
_ROWS, _COLUMNS = 4, 5
#: BLAS is slower up to this many columns and from this many features.
_MOST_COLUMNS, _LEAST_FEATURES = 31, 128


def is_narrow(X: FloatArray, m: int) -> bool:
    """Return whether products of the rows X (b, d) with m columns are faster here than in BLAS."""
    b, d = X.shape
    return b >= _ROWS and d >= _LEAST_FEATURES and m <= _MOST_COLUMNS


@jit(fastmath={"reassoc", "contract", "nsz"})
def multiply_rows(X: FloatArray, columns: FloatArray, out: FloatArray) -> None:
    """Write the inner products of at least four rows of X (b, d) with `columns` (m, d) to `out` (b, m)."""
    rows, m = out.shape
    size, grouped = X.shape[1] * X.itemsize, m - m % _COLUMNS
    for start in range(0, rows, _ROWS):
        # The last group overlaps the one before and recomputes the same numbers.
        i = min(start, rows - _ROWS)
        for following in range(i + _ROWS, min(i + 2 * _ROWS, rows)):
            fetch(X, following, size)
        for j in range(0, grouped, _COLUMNS):
            _four_times_five(X, i, columns, j, out)
        for j in range(grouped, m):
            a = b = c = d = out.dtype.type(0.0)
            for k in range(X.shape[1]):
                w = columns[j, k]
                a, b, c, d = a + X[i, k] * w, b + X[i + 1, k] * w, c + X[i + 2, k] * w, d + X[i + 3, k] * w
            out[i, j], out[i + 1, j], out[i + 2, j], out[i + 3, j] = a, b, c, d


@jit(fastmath={"reassoc", "contract", "nsz"})
def _four_times_five(X: FloatArray, i: int, columns: FloatArray, j: int, out: FloatArray) -> None:
    a0 = a1 = a2 = a3 = a4 = out.dtype.type(0.0)
    b0 = b1 = b2 = b3 = b4 = c0 = c1 = c2 = c3 = c4 = d0 = d1 = d2 = d3 = d4 = a0
    for k in range(X.shape[1]):
        a, b, c, d = X[i, k], X[i + 1, k], X[i + 2, k], X[i + 3, k]
        w = columns[j, k]
        a0, b0, c0, d0 = a0 + a * w, b0 + b * w, c0 + c * w, d0 + d * w
        w = columns[j + 1, k]
        a1, b1, c1, d1 = a1 + a * w, b1 + b * w, c1 + c * w, d1 + d * w
        w = columns[j + 2, k]
        a2, b2, c2, d2 = a2 + a * w, b2 + b * w, c2 + c * w, d2 + d * w
        w = columns[j + 3, k]
        a3, b3, c3, d3 = a3 + a * w, b3 + b * w, c3 + c * w, d3 + d * w
        w = columns[j + 4, k]
        a4, b4, c4, d4 = a4 + a * w, b4 + b * w, c4 + c * w, d4 + d * w
    out[i, j], out[i, j + 1], out[i, j + 2], out[i, j + 3], out[i, j + 4] = a0, a1, a2, a3, a4
    i += 1
    out[i, j], out[i, j + 1], out[i, j + 2], out[i, j + 3], out[i, j + 4] = b0, b1, b2, b3, b4
    i += 1
    out[i, j], out[i, j + 1], out[i, j + 2], out[i, j + 3], out[i, j + 4] = c0, c1, c2, c3, c4
    i += 1
    out[i, j], out[i, j + 1], out[i, j + 2], out[i, j + 3], out[i, j + 4] = d0, d1, d2, d3, d4


@jit(fastmath={"contract"})
def _add_rows(U: FloatArray, X: FloatArray, total: FloatArray) -> None:
    """Add U^T X of the rows of U (b, m) and X (b, d) to `total` (m, d)."""
    b, m = U.shape
    grouped = m - m % _COLUMNS
    alone = b - b % _ROWS
    for i in range(0, alone, _ROWS):
        for j in range(0, grouped, _COLUMNS):
            _add_four_to_five(U, X, i, j, total)
        for j in range(grouped, m):
            a, b, c, d = U[i, j], U[i + 1, j], U[i + 2, j], U[i + 3, j]
            for k in range(X.shape[1]):
                total[j, k] += (a * X[i, k] + b * X[i + 1, k]) + (c * X[i + 2, k] + d * X[i + 3, k])
    for i in range(alone, U.shape[0]):
        for j in range(m):
            u = U[i, j]
            for k in range(X.shape[1]):
                total[j, k] += u * X[i, k]


@jit(fastmath={"contract"})
def _add_four_to_five(U: FloatArray, X: FloatArray, i: int, j: int, total: FloatArray) -> None:
    a0, a1, a2, a3, a4 = U[i, j], U[i, j + 1], U[i, j + 2], U[i, j + 3], U[i, j + 4]
    i += 1
    b0, b1, b2, b3, b4 = U[i, j], U[i, j + 1], U[i, j + 2], U[i, j + 3], U[i, j + 4]
    i += 1
    c0, c1, c2, c3, c4 = U[i, j], U[i, j + 1], U[i, j + 2], U[i, j + 3], U[i, j + 4]
    i += 1
    d0, d1, d2, d3, d4 = U[i, j], U[i, j + 1], U[i, j + 2], U[i, j + 3], U[i, j + 4]
    i -= 3
    for k in range(X.shape[1]):
        a, b, c, d = X[i, k], X[i + 1, k], X[i + 2, k], X[i + 3, k]
        total[j, k] += (a0 * a + b0 * b) + (c0 * c + d0 * d)
        total[j + 1, k] += (a1 * a + b1 * b) + (c1 * c + d1 * d)
        total[j + 2, k] += (a2 * a + b2 * b) + (c2 * c + d2 * d)
        total[j + 3, k] += (a3 * a + b3 * b) + (c3 * c + d3 * d)
        total[j + 4, k] += (a4 * a + b4 * b) + (c4 * c + d4 * d)


#: Multiplications per round below which one BLAS thread is faster than several.
_SMALL_ROUND = 1e8
#: CPU time quota of a container in microseconds, and its period.
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


#: Guards the BLAS limit of this process: each library with its number of threads before, once for each user.
_lock = threading.Lock()
_limited: list[list[tuple[Any, int]]] = []


@cache
def _blas_libraries(_with_scipy: bool) -> list[Any]:
    """Return the BLAS libraries of this process; the search takes 2 ms, and SciPy may bring its own later."""
    found: list[Any] = ThreadpoolController().select(user_api="blas").lib_controllers
    return found


def _blas_threads() -> list[tuple[Any, int]]:
    """Return the BLAS libraries with their numbers of threads outside any limit."""
    if _limited:
        return _limited[0]
    return [(library, library.num_threads) for library in _blas_libraries("scipy.linalg" in sys.modules)]


def _limit_threads(libraries: Sequence[tuple[Any, int]], most: float) -> None:
    """Give every library its number of threads, or `most`, from any thread.

    From threadpoolctl 3.8 on `set_num_threads` does nothing for OpenBLAS outside the first thread while that
    lives; here users are counted instead.
    """
    for library, number in libraries:
        getattr(library, "_real_set_num_threads", library.set_num_threads)(min(number, most))


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread while any user of this process is inside, then restore it.

    One thread makes products independent of the machine, and workers do not compete for cores.  Users are
    counted because in an in-process cluster the first to finish would otherwise lift the limit for all.
    """
    with _lock:
        _limited.append(_blas_threads())
        if len(_limited) == 1:
            _limit_threads(_limited[0], 1)
    try:
        yield
    finally:
        with _lock:
            before = _limited.pop()
            if not _limited:
                _limit_threads(before, math.inf)


def threads_here() -> int:
    """Return how many threads a job of this process may use.

    As many as BLAS would use, given OMP_NUM_THREADS and the like and threadpoolctl's limits, but at most the
    cores available to this process.
    """
    with _lock:
        found = [int(number) for _, number in _blas_threads() if number]
    return max(1, min([available_cores(), *found]))


def blas_threads_for(multiplications: float) -> AbstractContextManager[None]:
    """Return a context with one BLAS thread for small rounds and the current number for others."""
    return one_blas_thread() if multiplications < _SMALL_ROUND else nullcontext()


def available_cores() -> int:
    """Return the number of cores available to this process, its container's quota included."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text(encoding="ascii").split()
    except (OSError, ValueError):  # no container, or another system
        return cores
    return cores if quota == "max" else max(1, min(cores, -(-int(quota) // int(period))))


#: Least multiplications and numbers per piece: some tenths of a millisecond of work, far longer than waking a
#: thread.
_LEAST_PRODUCT, _LEAST_ROWS = 1 << 23, 1 << 16
#: Most pieces of a tile; least columns per piece (every piece reads all rows of the tile), least with two
#: pieces, and the multiple they are rounded to.
_MOST_PIECES, _LEAST_COLUMNS, _LEAST_OF_TWO, _MULTIPLE = 8, 64, 32, 4


#: Far more threads than a machine has cores.
_MOST_HELPERS = 1024


def helpers() -> Executor:
    """Return a pool that starts a thread whenever one is needed and none is idle."""
    return ThreadPoolExecutor(_MOST_HELPERS, thread_name_prefix="topline-helper")


@dataclass(frozen=True, eq=False)
class Crew:
    """A number of threads, the caller included; the others come from a pool that crews may share."""

    threads: int = 1
    pool: Executor = field(default_factory=helpers)

    def each(self, work: Callable[[slice], None], pieces: Sequence[slice]) -> None:
        """Run `work` on every piece, in any order."""
        others = min(self.threads, len(pieces)) - 1
        if others <= 0:
            for piece in pieces:
                work(piece)
            return
        numbers = count()

        def take() -> None:
            # NumPy's error settings are per thread.
            with np.errstate(over="ignore", invalid="ignore"):
                while (number := next(numbers)) < len(pieces):
                    work(pieces[number])

        begun = [self.pool.submit(take) for _ in range(others)]
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
        """Add U^T X of the rows to `product` (m, d)."""
        if not isinstance(X, np.ndarray):
            product += (X.T @ U).T
            return
        if is_narrow(X, U.shape[1]):
            total = np.zeros(product.shape, X.dtype)
            _add_rows(np.ascontiguousarray(U), X, total)
            product += total
            return

        def add(piece: slice) -> None:
            product[piece] += U[:, piece].T @ X

        self.each(add, columns_of(U.shape[1], U.size * X.shape[1]))

    def add_rows(
        self, work: Callable[[slice, Float64Array], None], rows: int, width: int, sums: Float64Array
    ) -> None:
        """Let `work` add up parts of the rows, of `width` numbers each; parts are summed in order."""
        pieces = _cut(rows, rows * width // _LEAST_ROWS, 1)
        if len(pieces) == 1:
            work(pieces[0], sums)
            return
        parts = {piece.start: np.zeros_like(sums) for piece in pieces}
        self.each(lambda piece: work(piece, parts[piece.start]), pieces)
        for piece in pieces:
            sums += parts[piece.start]


#: The calling thread alone.
ALONE = Crew()


def columns_of(m: int, multiplications: int) -> list[slice]:
    """Return slices of the m columns of a product with that many multiplications."""
    by_columns = max(m // _LEAST_COLUMNS, min(m // _LEAST_OF_TWO, 2))
    return _cut(m, min(by_columns, multiplications // _LEAST_PRODUCT), _MULTIPLE)


def _cut(length: int, pieces: int, multiple: int) -> list[slice]:
    """Return about that many equal slices, a multiple long except for the last."""
    pieces = min(pieces, _MOST_PIECES)
    if pieces <= 1:
        return [slice(0, length)]
    step = -(-length // (pieces * multiple)) * multiple
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]
