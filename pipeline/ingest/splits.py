"""Which rows train and which are held out; labels and class names; what becomes of repeated content."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.errors import InputError
from topline.pipeline.images import sorted_names
from topline.pipeline.readers import LabelLists, label_set_table
from topline.storage.datasets import LabelSetTable
from topline.storage.schema import NO_LABEL, SPLITS


@dataclass(frozen=True, eq=False)
class RowSplits:
    """Labels (n,) int32, codes of `storage.schema.SPLITS` (n,) int8, and the names of labels 0, 1, ...

    Where rows have several labels, theirs are numbers of the `label_sets` of those names.
    """

    labels: NDArray[np.int32]
    split: NDArray[np.int8]
    class_names: tuple[str, ...]
    label_sets: LabelSetTable | None = None


def split_rows(
    ids: Sequence[str],
    labels: Sequence[str | None],
    splits: Sequence[str | None],
    usable: NDArray[np.bool_],
    *,
    test_share: float,
    seed: int,
    class_names: Sequence[str] | None = None,
) -> RowSplits:
    """Labels and splits of rows; those that are not `usable` go to the split "rejected" without a label.

    A row keeps its split in `splits`; where no row has one, `hold_out` makes them.  Classes without a usable
    row are left out, unless `class_names` gives all of them in their order.  Raises `InputError` where no
    row, or no row for training, remains.
    """
    names = tuple(class_names or ()) or sorted_names(
        label for label, good in zip(labels, usable, strict=True) if good and label is not None
    )
    if not names:
        raise InputError("no usable example is left: each was rejected, for the reason in its sentence")
    code = {name: i for i, name in enumerate(names)}
    y = np.full(len(ids), NO_LABEL, dtype=np.int32)
    rows: list[int] = np.flatnonzero(usable).tolist()
    y[rows] = [code[str(labels[row])] for row in rows]
    split = _split_codes(ids, rows, splits, y[rows], test_share=test_share, seed=seed)
    return RowSplits(y, split, names)


def split_label_sets(
    ids: Sequence[str],
    lists: LabelLists,
    splits: Sequence[str | None],
    usable: NDArray[np.bool_],
    *,
    test_share: float,
    seed: int,
) -> RowSplits:
    """Label sets and splits of rows, as `split_rows`; a held-out share is one of all rows.

    Most label sets have a row or two, so that a share of each would hold out next to nothing.
    """
    rows: list[int] = np.flatnonzero(usable).tolist()
    known = [lists.rows[row] for row in rows]
    names = tuple(lists.names or ()) or sorted_names(label for labels in known for label in labels)
    if not names:
        raise InputError("no usable example has a label: give some rows labels")
    y = np.full(len(ids), NO_LABEL, dtype=np.int32)
    table, y[rows] = label_set_table(known, names)
    same = np.zeros(len(rows), dtype=np.int64)
    split = _split_codes(ids, rows, splits, same, test_share=test_share, seed=seed)
    return RowSplits(y, split, names, table)


def _split_codes(
    ids: Sequence[str],
    rows: list[int],
    splits: Sequence[str | None],
    classes: NDArray[np.integer[Any]],
    *,
    test_share: float,
    seed: int,
) -> NDArray[np.int8]:
    """Splits of all rows: as given, or by `hold_out` of these `rows` of `classes`; all others rejected."""
    split = np.full(len(ids), SPLITS["rejected"], dtype=np.int8)
    if any(splits[row] is not None for row in rows):
        split[rows] = [SPLITS[splits[row] or "train"] for row in rows]
    else:
        held = hold_out([ids[row] for row in rows], classes, share=test_share, seed=seed)
        split[rows] = np.where(held, SPLITS["test"], SPLITS["train"])
    if not (split == SPLITS["train"]).any():
        raise InputError("no example is left for training: give some the split train")
    return split


def hold_out(
    ids: Sequence[str], labels: NDArray[np.integer[Any]], *, share: float, seed: int
) -> NDArray[np.bool_]:
    """Rows to hold out: of each class `share` of its rows, rounded, but never all of them.

    Which ones is decided by a hash of seed and id, so that it depends neither on the order of the rows nor
    on the other classes.
    """
    held = np.zeros(len(ids), dtype=bool)
    hashes = np.array([hashlib.sha256(f"{seed}:{name}".encode()).hexdigest() for name in ids])
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        count = min(int(share * len(rows) + 0.5), len(rows) - 1)
        held[rows[np.argsort(hashes[rows], kind="stable")[:count]]] = True
    return held


def repeated_content(
    digests: Sequence[str | None], usable: NDArray[np.bool_], names: Sequence[tuple[str, ...]]
) -> NDArray[np.int64]:
    """For each row the usable row with the same digest whose name comes first; -1 where that is itself.

    Unusable rows have -1 as well.
    """
    first: dict[str, int] = {}
    same = np.full(len(digests), -1, dtype=np.int64)
    for row in sorted(np.flatnonzero(usable).tolist(), key=lambda row: names[row]):
        earlier = first.setdefault(str(digests[row]), row)
        if earlier != row:
            same[row] = earlier
    return same
