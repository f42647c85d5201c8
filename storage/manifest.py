"""The manifest: one row an image (or example), in the order of the features' rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.errors import FormatError

STATUSES = ("ok", "rejected", "duplicate")

MANIFEST_SCHEMA = pa.schema(
    [
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("path", pa.string()),
        pa.field("label", pa.int32()),
        pa.field("class_name", pa.string()),
        pa.field("split", pa.string()),
        pa.field("sha256", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("width", pa.int32()),
        pa.field("height", pa.int32()),
        pa.field("status", pa.string(), nullable=False),
        pa.field("error", pa.string()),
    ]
)
"""size in bytes of the file, width and height in pixels, error the reason of a rejection."""


def conform(table: pa.Table) -> pa.Table:
    """`table` with exactly the columns of the manifest: missing ones are null, "status" is "ok" by default.

    Raises `FormatError` for a column of another name or type, and for a row without a sample id.
    """
    raise NotImplementedError


def empty_manifest(sample_ids: Sequence[str]) -> pa.Table:
    """Manifest of rows of which nothing is known but their ids (imported features)."""
    return conform(pa.table({"sample_id": pa.array(list(sample_ids), pa.string())}))


def with_assignments(
    table: pa.Table, labels: NDArray[np.int32], split: NDArray[np.int8], class_names: Sequence[str]
) -> pa.Table:
    """`table` with its label, class_name and split columns taken from the dataset's arrays."""
    raise NotImplementedError
