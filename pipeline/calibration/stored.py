"""The calibration of a stored model: read from its record and arrays, and the draws of rows by their ids."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.solvers.calibration import Calibration, CalibrationRows, ProbabilityMap
from topline.storage.models import Model, calibration_array

ROW_ARRAYS = ("labels", "ranks", "before", "own", "draws")


def stored_calibration(model: Model) -> Calibration:
    """Return what is stored with a model; the digests of its arrays are checked."""
    record: Mapping[str, Any] = model.record.calibration or {}
    fitted, rows = record.get("probabilities"), None
    if record.get("rows"):
        rows = CalibrationRows(*(calibration_array(model, name) for name in ROW_ARRAYS))
    if fitted is not None:
        slope, offset = calibration_array(model, "probabilities").tolist()
        fitted = ProbabilityMap(fitted["kind"], slope, offset)
    return Calibration(
        model.record.class_names,
        fitted,
        int(record.get("fitted_rows", 0)),
        tuple((coverage, *both) for coverage, *both in record.get("penalties", ())),
        rows,
    )


def in_words(found: Calibration) -> str:
    """Return in words what the probabilities are."""
    how = found.probabilities
    if how is None:
        return "none: hold out rows to fit them on with --val-share, or give rows the split val"
    if not found.fitted_rows:
        return "the loss's own, not fitted: there are no validation rows"
    kinds = {
        "temperature": "every class equally probable"
        if how.temperature is None
        else f"temperature {how.temperature:.4g}",
        "one_vs_all": f"normalised sigmoids of {how.slope:.4g} s {how.offset:+.4g}",
        "labels": f"a sigmoid of {how.slope:.4g} s {how.offset:+.4g} for each label",
    }
    return f"{kinds[how.kind]}, fitted on {found.fitted_rows:,} validation rows"


def row_draws(ids: Sequence[str], seed: int) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each row, by seed and id: the same in whatever batch a row comes."""
    # Splits are drawn by another hash of the same text, so that calibration rows have draws like all others.
    hashed = (hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8, person=b"sets") for name in ids)
    found = [int.from_bytes(one.digest(), "big") for one in hashed]
    # The upper 53 bits are what a double holds.
    return (np.array(found, dtype=np.uint64) >> np.uint64(11)).astype(np.float64) * 2.0**-53
