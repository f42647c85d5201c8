"""Rows of features as they are used: named, finite, and in the type that is wanted."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from topline.pipeline.errors import InputError
from topline.pipeline.readers.base import FeatureFile, Rows, named
from topline.pipeline.readers.words import first_rows

logger = logging.getLogger(__name__)

#: A column keeps so many steps within its spread, or a warning names it.
_STEPS = 512


def names_of_rows(source: FeatureFile) -> Sequence[str]:
    """Return a name for each row; `InputError` where two rows have the same, by which edits find them."""
    ids = source.ids()
    if ids is None:
        return [row_name(row) for row in range(source.n)]
    if len(set(ids)) < len(ids):
        twice = next(name for name, count in Counter(ids).items() if count > 1)
        rows = [row for row, name in enumerate(ids) if name == twice]
        raise InputError(
            f"{source.place} names {first_rows(rows)} alike, {twice!r}: give each row a name of its own,"
            " or leave the column of names out"
        )
    return ids


def row_name(row: int) -> str:
    """Return the name of a row that the file gives none."""
    return f"row{row:09d}"


def checked_rows(source: FeatureFile, X: Rows, start: int, dtype: str) -> Rows:
    """Return rows in the stored type (CSR: float32); `InputError` naming those that are not finite."""
    kind = np.dtype(dtype)
    values = X.data if isinstance(X, csr_matrix) else X
    with np.errstate(over="ignore"):
        stored = np.asarray(values).astype(kind)
    bad = ~np.isfinite(stored)
    if bad.any():
        _refuse(source, X, np.asarray(values), bad, start, dtype)
    if isinstance(X, csr_matrix):
        return csr_matrix((stored.astype(np.float32), X.indices, X.indptr), shape=X.shape)
    return stored


class Coarse:
    """Finds columns whose values differ by less than their type can tell, and warns of them once."""

    def __init__(self, source: FeatureFile) -> None:
        self._source = source
        self._told = False

    def look(self, X: Rows, stored: Rows) -> None:
        """Compare rows as they were read with those to be stored."""
        if self._told or isinstance(X, csr_matrix) or isinstance(stored, csr_matrix) or len(X) < 2:
            return
        if X.dtype == stored.dtype or X.dtype.kind == "b":
            return
        values = X.astype(np.float64)
        spread = values.max(axis=0) - values.min(axis=0)
        lost = np.abs(values - stored).max(axis=0) * _STEPS > spread
        columns = np.flatnonzero(lost & (spread > 0)).tolist()
        if columns:
            self._told = True
            names = self._source.columns() or [f"column {column}" for column in range(X.shape[1])]
            logger.warning(
                "%s: %s has values so close beside their size that %s takes many for equal, such as times in"
                " seconds: subtract their mean, and import again",
                self._source.place,
                named([names[column] for column in columns]),
                stored.dtype,
            )


def _refuse(source: FeatureFile, X: Rows, values: Any, bad: Any, start: int, dtype: str) -> None:
    if isinstance(X, csr_matrix):
        local = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))[bad]
    else:
        local = np.flatnonzero(bad.any(axis=1))
    rows = (np.unique(local) + start).tolist()
    names = None if isinstance(X, csr_matrix) else source.columns()
    columns = [names[column] for column in np.flatnonzero(bad.any(axis=0)).tolist()] if names else []
    within = f", of {named(columns)}" if columns else ""
    overflow = bool(np.isfinite(values[bad].astype(np.float64)).any())
    what = f"values beyond {dtype}" if overflow else "NaN or infinity"
    fix = "scale them" if overflow else "repair or leave out these rows"
    more = " (float32 reaches further)" if overflow and dtype == "float16" else ""
    raise InputError(f"{source.place} has {what} in {first_rows(rows)}{within}: {fix}{more}")
