"""Rows of features as they are used: named, finite, and in the type that is wanted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from topline.pipeline.errors import InputError
from topline.pipeline.readers.base import FeatureFile, Rows, first_rows, named


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
