"""Labels, splits and repeated content of the rows of an extraction."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from topline.pipeline.images import ImageItem
from topline.pipeline.ingest.splits import RowSplits, repeated_content, split_label_sets, split_rows
from topline.pipeline.options.ingest import ExtractConfig
from topline.pipeline.readers import LabelLists, split_labels
from topline.storage.datasets import Dataset, list_datasets
from topline.storage.stores import Store

CONTENT_RULE = "content"
"""Where an image's content decides whether it is held out: `split_rule` of a dataset's features."""


def recorded_splits(store: Store, newest: str | None) -> dict[str, str]:
    """The split of every content (by SHA-256) that a dataset of the store has dealt out.

    Datasets under the content rule need no reading but the newest: what left them would come back to the
    same split.  Where datasets disagree, a content that was ever held out is held out.
    """
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


def split_of_content(digest: str, *, share: float, seed: int) -> str:
    """Train or test, by a hash of seed and content alone: whatever else there is, today or later."""
    drawn = int.from_bytes(hashlib.sha256(f"{seed}:{digest}".encode()).digest()[:8], "big")
    return "test" if drawn < share * 2.0**64 else "train"


def with_splits(
    items: Sequence[ImageItem],
    table: pa.Table,
    config: ExtractConfig,
    recorded: Mapping[str, str] | None = None,
) -> tuple[pa.Table, RowSplits]:
    """The manifest with duplicates named, and labels and splits of its rows.

    With `recorded` splits a content that was dealt out before stays where it was, and a new one goes where
    its folder says or its content decides.
    """
    digests = table["sha256"].to_pylist()
    usable = np.array([status != "rejected" for status in table["status"].to_pylist()])
    splits = [item.split for item in items]
    if recorded is not None:
        splits = [
            (recorded.get(digest) or split or _drawn(digest, config)) if good and digest else split
            for digest, split, good in zip(digests, splits, usable, strict=True)
        ]
    # Of copies in several splits the held-out one stays: what others measured on it can still be compared.
    names = [("1" if split == "train" else "0", item.path) for item, split in zip(items, splits, strict=True)]
    same = repeated_content(digests, usable, names)
    rows = _row_splits(items, splits, usable & (same < 0), config)
    status, errors = table["status"].to_pylist(), table["error"].to_pylist()
    labelled: list[int] = np.flatnonzero(rows.labels >= 0).tolist()
    code = {items[row].label: int(rows.labels[row]) for row in labelled}
    for row in np.flatnonzero(same >= 0).tolist():
        first, label = int(same[row]), items[row].label
        status[row], errors[row] = "duplicate", f"same content as {items[first].path}"
        # A copy is kept only beside its original: never in another split.
        if config.duplicates == "keep" and splits[row] == splits[first] and label in code:
            rows.labels[row] = code[label]
            rows.split[row] = rows.split[first]
    for name, values in (("status", status), ("error", errors)):
        position = table.schema.get_field_index(name)
        table = table.set_column(position, table.schema.field(name), pa.array(values, pa.string()))
    return table, rows


def _row_splits(
    items: Sequence[ImageItem],
    splits: Sequence[str | None],
    usable: NDArray[np.bool_],
    config: ExtractConfig,
) -> RowSplits:
    ids, labels = [item.sample_id for item in items], [item.label for item in items]
    share, seed = config.test_share, config.split_seed
    if config.label_separator is None:
        return split_rows(ids, labels, splits, usable, test_share=share, seed=seed)
    lists = LabelLists([split_labels(label, config.label_separator) for label in labels], None)
    return split_label_sets(ids, lists, splits, usable, test_share=share, seed=seed)


def _drawn(digest: str, config: ExtractConfig) -> str:
    return split_of_content(digest, share=config.test_share, seed=config.split_seed)
