"""The training rows of a dataset cut into folds, and one fold's data in memory."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, vstack

from topline.pipeline.options import KernelChoice
from topline.pipeline.rows import ClassWeight, TrainingRows, Transforms, class_of_groups, example_weights
from topline.solvers.kernels import KernelFeatures, make_kernel
from topline.solvers.run.search import unseen_classes
from topline.storage.datasets import Dataset
from topline.storage.stores import open_store

logger = logging.getLogger(__name__)

Labels = NDArray[np.int32]

#: The last few folds stay in memory; more do while all of them take at most this many bytes.
KEPT_FOLDS, KEPT_BYTES = 4, 1 << 30


@dataclass(frozen=True)
class FoldSource:
    """Where the folds come from; the same values give the same folds in every process."""

    store: str
    dataset: str
    folds: int
    seed: int
    rows: int | None
    transforms: tuple[str, ...]
    kernel: KernelChoice | None = None


@dataclass(frozen=True, eq=False)
class FoldData:
    """One fold's training rows X (n, d) and held-out rows, with kernel features or the fold's transforms."""

    X: Any
    y: Labels
    held_out: Any
    held_out_y: Labels
    held_out_rows: NDArray[np.int64]
    names: tuple[str, ...]
    own_weights: NDArray[np.float64] | None = None

    @property
    def m(self) -> int:
        """Number of classes."""
        return len(self.names)

    @property
    def nbytes(self) -> int:
        """Bytes of the features."""
        parts = (self.X, self.held_out)
        return sum(
            part.nbytes if isinstance(part, np.ndarray) else part.data.nbytes + part.indices.nbytes
            for part in parts
        )

    def weights(self, class_weight: ClassWeight) -> NDArray[np.float64] | None:
        """Return the weight of each training row (n,), None for equal weights."""
        return example_weights(class_weight, self.y, self.names, self.own_weights)


def stratified_folds(
    y: Labels, folds: int, seed: int, groups: NDArray[np.int32] | None = None
) -> NDArray[np.int64]:
    """Return the fold of each row (n,); folds differ by at most one row in size and in rows of a class.

    Each of `groups` lies in one fold: the largest of a class go first, each to the fold with the fewest rows
    of the class.
    """
    if groups is None:
        fold = np.empty(len(y), dtype=np.int64)
        fold[_by_class(y, seed)] = np.arange(len(y)) % folds
        return fold
    _, of_row, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    classes = class_of_groups(of_row, y)
    drawn = np.random.default_rng(seed).permutation(len(sizes))
    chosen, held = np.empty(len(sizes), dtype=np.int64), np.zeros((int(y.max()) + 1, folds), dtype=np.int64)
    total = [0] * folds
    for group in drawn[np.lexsort((-sizes[drawn], classes[drawn]))].tolist():
        of_class = held[classes[group]].tolist()
        to = chosen[group] = min(range(folds), key=lambda place: (of_class[place], total[place]))
        held[classes[group], to] += sizes[group]
        total[to] += int(sizes[group])
    return np.asarray(chosen[of_row])


def stratified_sample(y: Labels, rows: int | None, seed: int) -> NDArray[np.int64]:
    """Return ascending numbers of `rows` rows, stratified by class to within one; all if there are fewer."""
    if rows is None or rows >= len(y):
        return np.arange(len(y))
    return np.sort(_by_class(y, seed)[np.arange(rows) * len(y) // rows])


def warn_of_unseen_classes(dataset: Dataset, folds: int, seed: int, rows: int | None) -> None:
    """Warn of rows that are held out of folds without their class; `rows` as for `stratified_sample`."""
    sample = stratified_sample(TrainingRows(dataset, "train").labels(), rows, seed)
    used = TrainingRows(dataset, "train", only=sample)
    y = used.labels()
    fold = stratified_folds(y, folds, seed, used.groups)
    unseen = unseen_classes(y, ((fold != out, fold == out) for out in range(folds)), dataset.class_names)
    if unseen:
        logger.warning("%s", unseen)


def held_folds(folds: int, nbytes: int) -> int:
    """Return how many folds a process keeps of rows of this many bytes."""
    return min(folds, max(KEPT_FOLDS, KEPT_BYTES // max(nbytes, 1)))


def fold_data(source: FoldSource, fold: int) -> FoldData:
    """Return one fold's rows, from memory if kept there."""
    key = source, fold
    with _kept_lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    found = _fold_data(source, fold)
    with _kept_lock:
        _kept[key] = found
        # A kernel's factors are large, and one of them is in use.
        most = 1 if source.kernel is not None else KEPT_FOLDS
        while len(_kept) > most and sum(one.nbytes for one in _kept.values()) > KEPT_BYTES:
            _kept.popitem(last=False)
    return found


def _fold_data(source: FoldSource, fold: int) -> FoldData:
    X, stored = _all_rows(replace(source, kernel=None, transforms=()))
    y, own = stored.labels(), stored.own_weights
    out = stratified_folds(y, source.folds, source.seed, stored.groups) == fold
    rows, rest = X[~out], X[out]
    fitted = Transforms.fit(
        source.transforms, lambda: iter((rows,)), is_sparse=not isinstance(X, np.ndarray), seed=source.seed
    )
    rows, rest = fitted.apply(rows), fitted.apply(rest)
    if (choice := source.kernel) is not None:
        kernel = make_kernel(choice.name, choice.gamma, choice.degree, choice.coef0)
        features = KernelFeatures.of(kernel, rows)
        rows, rest = features.rows.astype(np.float32), features.features_of(rest).astype(np.float32)
    names, own = stored.dataset.class_names, None if own is None else own[~out]
    return FoldData(rows, y[~out], rest, y[out], np.flatnonzero(out), names, own)


_kept: OrderedDict[tuple[FoldSource, int], FoldData] = OrderedDict()
_kept_lock = threading.Lock()


@lru_cache(maxsize=1)
def _all_rows(source: FoldSource) -> tuple[Any, TrainingRows]:
    dataset = Dataset.open(open_store(source.store), source.dataset)
    wanted = stratified_sample(TrainingRows(dataset, "train").labels(), source.rows, source.seed)
    rows = TrainingRows(dataset, "train", only=wanted)
    parts = [tile for _, _, tile in rows.tiles()]
    X = np.concatenate(parts) if isinstance(parts[0], np.ndarray) else csr_matrix(vstack(parts, format="csr"))
    return X, rows


def forget_folds() -> None:
    """Drop all rows in memory."""
    with _kept_lock:
        _kept.clear()
    _all_rows.cache_clear()


def _by_class(y: Labels, seed: int) -> NDArray[np.int64]:
    """Return all row numbers by class, in random order within a class."""
    shuffled = np.random.default_rng(seed).permutation(len(y))
    return np.asarray(shuffled[np.argsort(y[shuffled], kind="stable")], dtype=np.int64)
