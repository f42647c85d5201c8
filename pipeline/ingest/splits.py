"""Which rows train and which are held out, with their labels and class names, and the dataset they become."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from topline.pipeline.errors import InputError, InterruptedRunError
from topline.pipeline.images import ImageItem, sorted_names
from topline.pipeline.options import ExtractConfig, SplitConfig
from topline.pipeline.readers import LabelLists, label_set_table, split_labels
from topline.pipeline.rows import class_of_groups
from topline.solvers.counts import how_many
from topline.storage.datasets import (
    Dataset,
    DatasetInfo,
    DatasetWriter,
    LabelSetTable,
    RowFacts,
    list_datasets,
)
from topline.storage.schema import NO_LABEL, SPLIT_OF, SPLITS
from topline.storage.stores import Store

logger = logging.getLogger(__name__)

CONTENT_RULE = "content"
"""Where an image's content decides whether it is held out: `split_rule` of a dataset's features."""
#: A squared distance below this share of that between two rows on average is that of near copies.
_NEAR = 0.01
#: Rows of fewer columns are near each other by chance.
_LEAST_COLUMNS = 16
#: Held-out rows and numbers of the dataset that are looked at.
_LOOKED_AT, _NUMBERS = 500, 1 << 25
#: So many of those, and so large a share of them, are worth a word.
_LEAST, _SHARE = 3, 0.02


@dataclass(frozen=True)
class HeldOut:
    """Shares of each class that are held out, and the seed by which rows are drawn."""

    test: float = 0.0
    val: float = 0.0
    calibration: float = 0.0
    seed: int = 0

    @classmethod
    def of(cls, config: SplitConfig) -> HeldOut:
        """Return what the options say."""
        return cls(config.test_share, config.val_share, config.calibration_share, config.split_seed)

    @property
    def shares(self) -> dict[str, float]:
        """The share of each split, in the order in which they are drawn."""
        return {"test": self.test, "val": self.val, "calibration": self.calibration}

    def beside(self, given: Sequence[str | None]) -> HeldOut:
        """Return what is left to draw where rows have these splits: who gives splits gives the test rows."""
        found = {name for name in given if name is not None}
        if not found:
            return self
        left = {name: share for name, share in self.shares.items() if name not in {"test", *found}}
        return HeldOut(**left, seed=self.seed)

    def facts(self) -> dict[str, float]:
        """Return what a dataset's features say of it; shares of later versions only where they are used."""
        later = {"val_share": self.val, "calibration_share": self.calibration}
        return {
            "test_share": self.test,
            "split_seed": self.seed,
            **{name: share for name, share in later.items() if share},
        }


@dataclass(frozen=True, eq=False)
class RowSplits:
    """Labels (n,) int32 of the names, or of the label sets of these, and codes of `SPLITS` (n,) int8."""

    labels: NDArray[np.int32]
    split: NDArray[np.int8]
    class_names: tuple[str, ...]
    label_sets: LabelSetTable | None = None
    facts: RowFacts | None = None

    def commit(
        self, writer: DatasetWriter, manifest: pa.Table | None = None, *, follow: bool = False
    ) -> DatasetInfo:
        """Make a writer's dataset visible; warn of near copies in the first of those that `follow`."""
        info = writer.commit(
            self.labels, self.split, self.class_names, manifest, self.label_sets, facts=self.facts
        )
        if not follow:
            _warn_of_near_copies(Dataset(writer.store, info))
        return info


@dataclass(frozen=True)
class Ingested:
    """A stored dataset; `reused` says that it was there already.

    The smallest and the largest class come with their rows, None where rows have several labels.
    """

    dataset: str
    store: str
    n: int
    d: int
    m: int
    counts: dict[str, int]
    smallest_class: tuple[str, int] | None
    largest_class: tuple[str, int] | None
    reused: bool
    seconds: float
    info: DatasetInfo

    @classmethod
    def of(cls, store: Store, info: DatasetInfo, begun: float, *, reused: bool, **more: Any) -> Self:
        """Return the result of what began at `begun` by the monotonic clock."""
        least = most = None
        if info.label_sets is None and info.m:
            labels = Dataset(store, info).labels()
            sizes = np.bincount(labels[labels >= 0], minlength=info.m)
            least, most = (
                (info.class_names[code], int(sizes[code])) for code in (sizes.argmin(), sizes.argmax())
            )
        counts, seconds = dict(info.counts), time.monotonic() - begun
        size = info.n_rows, info.d, info.m, counts
        return cls(info.id, store.url, *size, least, most, reused, seconds, info, **more)

    @property
    def class_sizes(self) -> str | None:
        """The rows of the smallest and of the largest class in words."""
        if self.smallest_class is None or self.largest_class is None:
            return None
        (small, least), (large, most) = self.smallest_class, self.largest_class
        return f"{least:,} rows each" if least == most else f"{least:,} rows ({small}) to {most:,} ({large})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "info"}
        return {**values, "class_names": list(self.info.class_names)}


def parts_stored(writer: DatasetWriter, why: str) -> InterruptedRunError:
    """Return what is said of a dataset that was interrupted, and continues where it stopped."""
    return InterruptedRunError(
        f"{why}; {len(writer.done_units())} of {writer.units} parts are stored: run the same command again to"
        " continue"
    )


def split_rows(
    ids: Sequence[str],
    labels: Sequence[str | None] | LabelLists,
    splits: Sequence[str | None],
    usable: NDArray[np.bool_],
    *,
    held_out: HeldOut,
    class_names: Sequence[str] | None = None,
    groups: Sequence[str | None] | None = None,
    weights: Sequence[float] | None = None,
) -> RowSplits:
    """Return labels and splits of rows; those not `usable` go to the split "rejected" without a label.

    A row keeps its split in `splits`; what these leave open, `hold_out` draws from the rows for training.
    Classes without a usable row are left out, unless `class_names` are all of them.  Of rows with several
    labels a share of all is held out, as most label sets have a row or two.  Rows of one of the `groups` are
    in one split.  `InputError` where no row for training remains, and where the given splits cut a group.
    """
    rows: list[int] = np.flatnonzero(usable).tolist()
    y = np.full(len(ids), NO_LABEL, dtype=np.int32)
    table = None
    if isinstance(labels, LabelLists):
        known = [labels.rows[row] for row in rows]
        names = tuple(labels.names or ()) or sorted_names(label for row in known for label in row)
        if not names:
            raise InputError("no usable example has a label: give some rows labels")
        table, y[rows] = label_set_table(known, names)
        classes = np.zeros(len(rows), dtype=np.int64)
    else:
        found = [labels[row] for row in rows]
        names = tuple(class_names or ()) or sorted_names(label for label in found if label is not None)
        if not names:
            raise InputError("no usable example is left: each was rejected, for the reason in its sentence")
        code = {name: i for i, name in enumerate(names)}
        classes = np.array([code[str(label)] for label in found], dtype=np.int64)
        y[rows] = classes
    split = np.full(len(ids), SPLITS["rejected"], dtype=np.int8)
    given = [splits[row] for row in rows]
    codes = np.array([SPLITS[word or "train"] for word in given], dtype=np.int8)
    free = codes == SPLITS["train"]
    units = ids if groups is None else [group or name for group, name in zip(groups, ids, strict=True)]
    codes[free] = hold_out(
        [units[row] for row in np.asarray(rows)[free].tolist()], classes[free], held_out.beside(given)
    )
    split[rows] = codes
    numbers = None if groups is None else _numbered(groups, codes, rows)
    if not (split == SPLITS["train"]).any():
        raise InputError("no example is left for training: give some the split train")
    return RowSplits(
        y, split, names, table, RowFacts(numbers, None if weights is None else np.array(weights))
    )


def _numbered(
    groups: Sequence[str | None], codes: NDArray[np.int8], rows: Sequence[int]
) -> NDArray[np.int32]:
    """Return the number of each row's group, or its own (n,); `InputError` for a group in two splits."""
    known: dict[str | int, int] = {}
    names = (row if group is None else group for row, group in enumerate(groups))
    numbers = np.array([known.setdefault(name, len(known)) for name in names], dtype=np.int32)
    _, first, of_row = np.unique(numbers[rows], return_index=True, return_inverse=True)
    other = np.flatnonzero(codes != codes[first[of_row]])
    if len(other):
        one, two = int(first[of_row[other[0]]]), int(other[0])
        raise InputError(
            f"the given splits cut the group {groups[rows[one]]!r}: row {rows[one]} is in"
            f" {SPLIT_OF[codes[one]]} and row {rows[two]} in {SPLIT_OF[codes[two]]}; one group has one split"
        )
    return numbers


def hold_out(units: Sequence[str], labels: NDArray[np.integer[Any]], held_out: HeldOut) -> NDArray[np.int8]:
    """Return the codes of the splits of rows: of each class the shares of its rows, rounded, but never all.

    `units` are ids of rows, or the groups that they are in, which count for the class of most of their rows.
    A hash of seed and name decides: no other rows or classes, nor shares of later splits, move a test row.
    """
    if not len(units):
        return np.zeros(0, dtype=np.int8)
    names, unit_of, sizes = np.unique(
        np.asarray(units, dtype=object), return_inverse=True, return_counts=True
    )
    hashes = np.array([hashlib.sha256(f"{held_out.seed}:{name}".encode()).hexdigest() for name in names])
    class_of = class_of_groups(unit_of, labels)
    codes = np.full(len(names), SPLITS["train"], dtype=np.int8)
    for label in np.unique(class_of):
        alike = np.flatnonzero(class_of == label)
        ordered, first = alike[np.argsort(hashes[alike], kind="stable")], 0
        ends = np.cumsum(sizes[ordered])
        for name, share in held_out.shares.items():
            # As many rows as that, to the nearest end of a unit; the last unit trains.
            wanted = first + int(share * ends[-1] + 0.5)
            last = min(int(np.searchsorted(ends - sizes[ordered] / 2, wanted, side="right")), len(ends) - 1)
            codes[ordered[np.searchsorted(ends, first, side="right") : last]] = SPLITS[name]
            first = int(ends[last - 1]) if last else 0
    # A rare class may lie in held-out groups of other classes alone: then its smallest group trains.
    for label in np.setdiff1d(labels, labels[codes[unit_of] == SPLITS["train"]]):
        held = np.unique(unit_of[labels == label])
        codes[held[np.argmin(sizes[held])]] = SPLITS["train"]
    return np.asarray(codes[unit_of], dtype=np.int8)


def repeated_content(
    digests: Sequence[str | None], usable: NDArray[np.bool_], names: Sequence[tuple[str, ...]]
) -> NDArray[np.int64]:
    """Return for each usable row the first one, by name, with its digest; -1 where there is no other."""
    first: dict[str, int] = {}
    same = np.full(len(digests), -1, dtype=np.int64)
    for row in sorted(np.flatnonzero(usable).tolist(), key=lambda row: names[row]):
        earlier = first.setdefault(str(digests[row]), row)
        if earlier != row:
            same[row] = earlier
    return same


def recorded_splits(store: Store, newest: str | None) -> dict[str, str]:
    """Return the split of each content (by SHA-256) in a store; one that was ever held out is held out."""
    # Of datasets under the content rule the newest says it.
    found: dict[str, str] = {}
    for info in list_datasets(store):
        if info.features.get("kind") != "images":
            continue
        if info.features.get("split_rule") == CONTENT_RULE and info.id != newest:
            continue
        table = Dataset(store, info).manifest().select(["sha256", "split"])
        for digest, split in zip(table["sha256"].to_pylist(), table["split"].to_pylist(), strict=True):
            if digest is not None and split != "rejected" and found.get(digest, "train") == "train":
                found[digest] = split
    return found


def split_of_content(digest: str, held_out: HeldOut) -> str:
    """Return the split by a hash of seed and content alone: whatever else there is, today or later."""
    drawn = int.from_bytes(hashlib.sha256(f"{held_out.seed}:{digest}".encode()).digest()[:8], "big")
    bound = 0.0
    for name, share in held_out.shares.items():
        bound += share
        if drawn < bound * 2.0**64:
            return name
    return "train"


def _kept_splits(
    items: Sequence[ImageItem],
    digests: Sequence[str | None],
    usable: NDArray[np.bool_],
    recorded: Mapping[str, str],
    held_out: HeldOut,
) -> list[str | None]:
    """Return the split of each image: where its content or group was before, else of its folder or drawn."""
    drawn, found = held_out.beside([item.split for item in items]), dict(recorded)
    for item, digest in zip(items, digests, strict=True):
        # A group is where one of its images was, and held out if any of them ever was.
        if item.group and digest and digest in recorded and found.get(item.group, "train") == "train":
            found[item.group] = recorded[digest]
    splits: list[str | None] = []
    for item, digest, good in zip(items, digests, usable, strict=True):
        split, unit = item.split, item.group or digest
        if good and digest and unit:
            split = found.get(unit) or (split_of_content(unit, drawn) if split in (None, "train") else split)
        splits.append(split)
    return splits


def with_splits(
    items: Sequence[ImageItem],
    table: pa.Table,
    config: ExtractConfig,
    recorded: Mapping[str, str] | None = None,
) -> tuple[pa.Table, RowSplits]:
    """Return the manifest with duplicates named, and labels and splits of its rows, `recorded` ones first."""
    digests = table["sha256"].to_pylist()
    usable = np.array([status != "rejected" for status in table["status"].to_pylist()])
    splits = [item.split for item in items]
    held_out = HeldOut.of(config)
    if recorded is not None:
        splits, held_out = _kept_splits(items, digests, usable, recorded, held_out), HeldOut()
    # Of copies in several splits the held-out one stays: what others measured on it can still be compared.
    names = [("1" if split == "train" else "0", item.path) for item, split in zip(items, splits, strict=True)]
    same = repeated_content(digests, usable, names)
    labels: list[str | None] | LabelLists = [item.label for item in items]
    separator = config.label_separator
    if separator is not None:
        labels = LabelLists([split_labels(item.label, separator) for item in items], None)
    weighted = any(item.weight is not None for item in items)
    rows = split_rows(
        [item.sample_id for item in items],
        labels,
        splits,
        usable & (same < 0),
        held_out=held_out,
        groups=[item.group for item in items] if any(item.group for item in items) else None,
        weights=[1.0 if item.weight is None else item.weight for item in items] if weighted else None,
    )
    status, errors = table["status"].to_pylist(), table["error"].to_pylist()
    labelled: list[int] = np.flatnonzero(rows.labels >= 0).tolist()
    code = {items[row].label: int(rows.labels[row]) for row in labelled}
    copies: list[int] = np.flatnonzero(same >= 0).tolist()
    torn = [row for row in copies if items[row].label != items[int(same[row])].label and separator is None]
    if torn:
        logger.warning(
            "the content of %s lies in two classes, such as %s and %s: remove the wrong one of each pair",
            how_many(len(torn), "images"),
            items[torn[0]].path,
            items[int(same[torn[0]])].path,
        )
    for row in copies:
        first, label = int(same[row]), items[row].label
        other = f", which has the label {items[first].label}" if row in torn else ""
        status[row], errors[row] = "duplicate", f"same content as {items[first].path}{other}"
        # A copy is kept only beside the first image: never in another split.
        kept = config.duplicates == "keep" and items[row].group == items[first].group
        if kept and splits[row] == splits[first] and label in code:
            rows.labels[row] = code[label]
            rows.split[row] = rows.split[first]
    known = dict(zip(table.column_names, table.columns, strict=True))
    return pa.table({**known, "status": status, "error": errors}, table.schema), rows


def _warn_of_near_copies(dataset: Dataset) -> None:
    """Warn where held-out rows are near copies of training rows, and no groups keep them together."""
    from sklearn.metrics import pairwise_distances_argmin_min

    info = dataset.info
    if dataset.facts().groups is not None or info.layout != "dense" or info.d < _LEAST_COLUMNS:
        return
    split = dataset.split()
    held = np.flatnonzero(np.isin(split, [SPLITS[name] for name in ("test", "val", "calibration")]))
    trained = np.flatnonzero(split == SPLITS["train"])
    held = held[:: -(-len(held) // _LOOKED_AT) or 1]
    if not len(held) or len(trained) < 2:
        return
    step = -(-len(trained) * info.d // _NUMBERS)
    X, Y = dataset.take(held), dataset.take(trained[::step])
    mean, scale = Y.mean(axis=0), Y.std(axis=0)
    scale[scale == 0] = np.inf
    X, Y = (X - mean) / scale, (Y - mean) / scale
    companion, distance = pairwise_distances_argmin_min(X, Y)
    nearest = distance**2
    near = np.flatnonzero(nearest < _NEAR * 2.0 * (Y**2).sum(axis=1).mean())
    if len(near) >= max(_LEAST, _SHARE * len(held)):
        ids, one = dataset.sample_ids(), int(near[np.argmin(nearest[near])])
        logger.warning(
            "%s of %s that were looked at are nearly copies of training rows, such as %s of %s: where they"
            " are of one patient, shop or burst of photographs, accuracies are too high; say with --groups"
            " which belong together",
            f"{len(near):,}",
            how_many(len(held), "held-out rows"),
            ids[int(held[one])],
            ids[int(trained[::step][companion[one]])],
        )
