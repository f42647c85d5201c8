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
REMOVAL_ENCODING: Final = "topline-removal"
ENCODING_VERSION: Final = "1"
VERSIONS: Final = {DATASET_ENCODING: "2", STAGING_ENCODING: "2"}
"""Versions of what has another one: datasets refer to units that they share since version 2."""
PIN_VERSION: Final = "2"
"""Version of the decisions to pin and to unpin."""
READ_AS_WELL: Final = {DATASET_ENCODING: ("1",), DECISION_ENCODING: (PIN_VERSION,)}
"""Other versions that are read: datasets of version 1 are not written any more."""

SPLITS: Final = {"train": 0, "val": 1, "test": 2, "rejected": 3, "calibration": 4}
"""Codes of the split array; a rejected row keeps its place with zero features and label -1.

Calibration rows serve nothing but the guarantee of prediction sets.
"""
SPLIT_OF: Final = {code: name for name, code in SPLITS.items()}
"""The names of the codes."""

NO_LABEL: Final = -1

LABEL_DTYPE: Final = np.dtype("int32")
SPLIT_DTYPE: Final = np.dtype("int8")
FEATURE_DTYPES: Final = (np.dtype("float16"), np.dtype("float32"))

GROUP: Final = "arrays"
"""Zarr group of a dataset's folder; it lies apart, as Zarr complains of other files in a group."""
LABELS: Final = "arrays/labels"
SPLIT: Final = "arrays/split"
CLASS_NAMES: Final = "arrays/class_names"
LABEL_SET_INDPTR: Final = "arrays/label_set_indptr"
LABEL_SET_INDICES: Final = "arrays/label_set_indices"
"""Only where rows have several labels: `labels` are then numbers of these sets."""
GROUPS: Final = "arrays/groups"
WEIGHTS: Final = "arrays/weights"
"""What is known of rows besides their labels; a dataset has neither unless it was given."""
CSR_ARRAYS: Final = ("indptr", "indices", "data")


def encoding(kind: str) -> dict[str, str]:
    """Return the attributes that identify the kind and version of a stored group or record."""
    return {"encoding-type": kind, "encoding-version": _version(kind)}


def check_encoding(record: Mapping[str, Any], kind: str, place: str) -> None:
    """Raise `FormatError` naming `place` unless `record` is a `kind` of a version that this code reads."""
    found, version = record.get("encoding-type"), record.get("encoding-version")
    if found != kind:
        raise FormatError(f"{place} is a {found}, not a {kind}")
    wanted = _version(kind)
    if version != wanted and version not in READ_AS_WELL.get(kind, ()):
        newer = str(version).isdecimal() and int(str(version)) > int(wanted)
        fix = "upgrade it" if newer else "make the store anew"
        raise FormatError(f"{place} has format version {version}; this topline reads {wanted}: {fix}")


def _version(kind: str) -> str:
    return VERSIONS.get(kind, ENCODING_VERSION)


def feature_dtype(dtype: Any) -> np.dtype[Any]:
    """Return `dtype` if features can be stored in it, float16 or float32; otherwise `FormatError`."""
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        found = np.dtype(object)
    if found not in FEATURE_DTYPES:
        raise FormatError(f"features are stored as float16 or float32, not {dtype}")
    return found


STAGING: Final = "staging.json"
FILES_LIST: Final = "files.json"
OWN_FEATURES: Final = "arrays/features"
OWN_MANIFEST: Final = "manifest.parquet"
"""Features and manifest in the dataset's own folder, as version 1 has them."""
UNITS_LIST: Final = "units.json"
OVERRIDES: Final = "overrides.parquet"
"""What a version says of rows in the place of the manifests that it shares with others; few have it."""
EDITS: Final = "edits.json"
"""Labels corrected and rows left out; only in versions that edits made."""
MARKS: Final = "marks"
UNITS: Final = "units"
MANIFESTS: Final = "manifests"


def mark_path(unit: int, other: str = "") -> str:
    """Return the path of a unit's mark in its dataset's folder; `other` digits tell a second one from it."""
    return f"{MARKS}/{unit:05d}{'-' * bool(other)}{other}.json"


def unit_folder(digest: str) -> str:
    """Return the folder of a unit's features, relative to the store's root."""
    return f"{UNITS}/{digest}"


def manifest_path(digest: str) -> str:
    """Return the file of a unit's manifest rows, relative to the store's root."""
    return f"{MANIFESTS}/{digest}.parquet"


def own_csr_path(unit: int) -> str:
    """Return the group of a sparse unit in the dataset's own folder, as in version 1."""
    return f"{OWN_FEATURES}/{unit:05d}"
