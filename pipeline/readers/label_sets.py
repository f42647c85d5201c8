"""Labels of rows that may have several: from the forms that files have to words, and to numbered sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.errors import InputError
from topline.pipeline.readers.words import SEVERAL, first_rows, words_of
from topline.solvers.losses import LabelSets
from topline.storage.datasets import DatasetInfo, LabelSetTable


@dataclass(frozen=True, eq=False)
class LabelLists:
    """The labels of each row as words, and the names of all labels in their order, where that is known."""

    rows: list[tuple[str, ...]]
    names: tuple[str, ...] | None


def label_lists(
    found: NDArray[Any], place: str, names: Sequence[str] | None, separator: str | None = None
) -> LabelLists | None:
    """Return the labels of rows that have several each; None where `found` holds one label per row.

    Several are an indicator (n, m) of 0 and 1, lists in an array of objects, or words with `separator`
    between them.  `names` are all labels in their order; numbers are places in it.  `InputError` naming
    `place` and rows for labels that are missing, foreign or given twice, and for a matrix that is not an
    indicator.
    """
    lists = found.dtype == object and any(isinstance(value, SEVERAL) for value in found)
    if separator is not None and (lists or found.ndim == 2):
        raise InputError(f"{place} has several labels per row already: leave --label-separator out")
    if found.ndim == 2:
        return _of_indicator(found, place, names)
    if found.ndim != 1:
        raise InputError(f"{place} has labels of shape {found.shape}: give (rows,) or (rows, classes)")
    if separator is not None:
        cells = [value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in found]
        words = [() if cell is None else _parts(str(cell), separator) for cell in cells]
        return _of_lists(words, place, names)
    if lists:
        return _of_lists([_plain(value) for value in found], place, names)
    return None


def label_set_table(
    lists: Sequence[tuple[str, ...]], names: Sequence[str]
) -> tuple[LabelSetTable, NDArray[np.int64]]:
    """Return the table of distinct sets, and the number of each row's set (n,)."""
    code = {name: i for i, name in enumerate(names)}
    sets, codes = LabelSets.from_lists([[code[label] for label in labels] for labels in lists], len(names))
    return LabelSetTable.checked(sets.indptr, sets.indices, len(names)), codes


def label_sets_for_solver(table: LabelSetTable | None, m: int) -> LabelSets | None:
    """Return the stored table as the solvers take it; None for single labels."""
    return None if table is None else LabelSets(table.indptr, table.indices.astype(np.int64), m)


def require_single_labels(info: DatasetInfo, why: str) -> None:
    """Raise `InputError` for a dataset whose rows have several labels, which have no top-k accuracy."""
    if info.label_sets is not None:
        raise InputError(
            f"dataset {info.id} has rows with several labels, and {why} by top-k accuracy, which takes one a"
            " row: measure models with topline evaluate"
        )


def _of_indicator(found: NDArray[Any], place: str, names: Sequence[str] | None) -> LabelLists:
    m = found.shape[1]
    if found.dtype.kind not in "biuf":
        raise InputError(
            f"{place} has a matrix of {found.dtype} for labels: give 0 and 1, one column per class"
        )
    wrong = ~np.isin(found, (0, 1)).all(axis=1)
    if wrong.any():
        row = int(np.argmax(wrong))
        value = found[row][~np.isin(found[row], (0, 1))][0]
        raise InputError(
            f"{place} has {value} in row {row} of its matrix of labels: give 1 for each label, else 0"
        )
    if names is not None and len(names) != m:
        raise InputError(f"{place} has {m} columns of labels, and {len(names)} class names are given")
    known = tuple(names) if names is not None else tuple(map(str, range(m)))
    rows, columns = np.nonzero(found)
    ends = np.searchsorted(rows, np.arange(len(found) + 1)).tolist()
    words = [known[column] for column in columns.tolist()]
    return LabelLists([tuple(words[a:b]) for a, b in pairwise(ends)], known)


def _of_lists(lists: list[tuple[Any, ...]], place: str, names: Sequence[str] | None) -> LabelLists:
    code = {str(i): name for i, name in enumerate(names or ())} | {name: name for name in names or ()}
    distinct = list(dict.fromkeys(value for labels in lists for value in labels))
    spelled = dict(zip(distinct, words_of(distinct), strict=True))
    _refuse(
        place, "a label that is missing", lists, [value for value, text in spelled.items() if text is None]
    )
    if names is not None:
        foreign = [value for value, text in spelled.items() if text not in code]
        _refuse(place, f"a label that is not one of the {len(names)} class names", lists, foreign)
    else:
        negative = [value for value, text in spelled.items() if str(text).startswith("-")]
        _refuse(place, "a negative label", lists, [v for v in negative if str(v).lstrip("-+").isdecimal()])
        fractions = [v for v in spelled if isinstance(v, float) and not v.is_integer()]
        _refuse(place, "a fraction for a label", lists, fractions)
    words = {value: str(text) if names is None else code[str(text)] for value, text in spelled.items()}
    rows = [tuple(words[value] for value in labels) for labels in lists]
    twice = [row for row, labels in enumerate(rows) if len(set(labels)) < len(labels)]
    if twice:
        raise InputError(f"{place} gives row {twice[0]} a label twice: give each of its labels once")
    return LabelLists(rows, None if names is None else tuple(names))


def _refuse(place: str, what: str, lists: list[tuple[Any, ...]], wrong: Sequence[Any]) -> None:
    """Raise `InputError` naming the first rows that have one of the wrong labels."""
    if not wrong:
        return
    bad = set(wrong)
    rows = [row for row, labels in enumerate(lists) if bad & set(labels)]
    raise InputError(
        f"{place} has {what} ({wrong[0]!r}) in {first_rows(rows)}: correct it, or leave the row out"
    )


def _plain(value: Any) -> tuple[Any, ...]:
    """Return the labels of a row as Python's own values."""
    if value is None:
        return ()
    return tuple(value.tolist() if isinstance(value, np.ndarray) else value)


def split_labels(text: str | None, separator: str) -> tuple[str, ...]:
    """Return the different labels of a text, in their order."""
    return tuple(dict.fromkeys(part for part in _parts(text or "", separator) if part))


def _parts(text: str, separator: str) -> tuple[str, ...]:
    """Return the words of a cell; an empty one has none."""
    return tuple(part.strip() for part in text.split(separator)) if text.strip() else ()
