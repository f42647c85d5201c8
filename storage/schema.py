"""Names, types and versions of what a dataset holds; every stored group carries them as attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from topline.storage.errors import FormatError

DATASET_ENCODING: Final = "topline-dataset"
MODEL_ENCODING: Final = "topline-model"
CHECKPOINT_ENCODING: Final = "topline-checkpoint"
RUN_ENCODING: Final = "topline-run"
SWEEP_ENCODING: Final = "topline-sweep"
SCHEDULE_ENCODING: Final = "topline-schedule"
HISTORY_ENCODING: Final = "topline-history"
KERNEL_ENCODING: Final = "topline-kernel"
DECISION_ENCODING: Final = "topline-registry"
ESTIMATOR_ENCODING: Final = "topline-estimator"
PREDICTIONS_ENCODING: Final = "topline-predictions"
CALIBRATION_ENCODING: Final = "topline-calibration"
DUALS_ENCODING: Final = "topline-duals"
STAGING_ENCODING: Final = "topline-staging"
STRINGS_ENCODING: Final = "topline-strings"
CSR_ENCODING: Final = "topline-csr-unit"
ENCODING_VERSION: Final = "1"

SPLITS: Final = {"train": 0, "val": 1, "test": 2, "rejected": 3, "calibration": 4}
"""Codes of the split array; a rejected row keeps its place with zero features and label -1.

Calibration rows serve nothing but the guarantee of prediction sets.
"""

NO_LABEL: Final = -1

LABEL_DTYPE: Final = np.dtype("int32")
SPLIT_DTYPE: Final = np.dtype("int8")
FEATURE_DTYPES: Final = (np.dtype("float16"), np.dtype("float32"))

GROUP: Final = "arrays"
"""Zarr group of a dataset's folder; it lies apart, as Zarr complains of other files in a group."""
FEATURES: Final = "arrays/features"
LABELS: Final = "arrays/labels"
SPLIT: Final = "arrays/split"
SAMPLE_IDS: Final = "arrays/sample_ids"
CLASS_NAMES: Final = "arrays/class_names"
LABEL_SET_INDPTR: Final = "arrays/label_set_indptr"
LABEL_SET_INDICES: Final = "arrays/label_set_indices"
"""Only where rows have several labels: `labels` are then numbers of these sets."""
CSR_ARRAYS: Final = ("indptr", "indices", "data")


def encoding(kind: str) -> dict[str, str]:
    """Return the attributes by which a stored group or record tells what it is."""
    return {"encoding-type": kind, "encoding-version": ENCODING_VERSION}


def check_encoding(record: Mapping[str, Any], kind: str, place: str) -> None:
    """`FormatError` naming `place` unless `record` is a `kind` of a version that this code reads."""
    found, version = record.get("encoding-type"), record.get("encoding-version")
    if found != kind:
        raise FormatError(f"{place} is a {found}, not a {kind}")
    if version != ENCODING_VERSION:
        raise FormatError(
            f"{place} has format version {version}; this topline reads {ENCODING_VERSION}: upgrade it"
        )


def feature_dtype(dtype: Any) -> np.dtype[Any]:
    """Return `dtype` as one that features are stored in; `FormatError` for all but float16 and float32."""
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        found = np.dtype(object)
    if found not in FEATURE_DTYPES:
        raise FormatError(f"features are stored as float16 or float32, not {dtype}")
    return found


STAGING: Final = "staging.json"
FILES_LIST: Final = "files.json"
MANIFEST: Final = "manifest.parquet"
PARTS: Final = "parts"


def part_path(unit: int) -> str:
    """Return the manifest part of a unit: written last, it is the unit's mark of completion."""
    return f"{PARTS}/{unit:05d}.parquet"


def csr_unit_path(unit: int) -> str:
    """Return the group of a sparse unit."""
    return f"{FEATURES}/{unit:05d}"
