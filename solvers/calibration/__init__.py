"""What scores are worth: probabilities fitted on held-out rows, their quality, and sets with a guarantee.

`probabilities` turns scores into probabilities, `quality` measures them, and `conformal` makes sets that hold
the right class with a stated probability.  Nothing here knows how the scores came about.
"""

from __future__ import annotations

from topline.solvers.calibration.conformal import (
    CalibrationRows,
    conformity,
    least_rows,
    prediction_sets,
    smallest_penalties,
)
from topline.solvers.calibration.probabilities import ProbabilityMap, fit_labels, fit_probabilities
from topline.solvers.calibration.quality import ReliabilityBin, calibration_error, reliability
from topline.solvers.calibration.rules import (
    Calibration,
    Penalties,
    SetRule,
    SetsBy,
    members,
    tuned_penalties,
)

__all__ = [
    "Calibration",
    "CalibrationRows",
    "Penalties",
    "ProbabilityMap",
    "ReliabilityBin",
    "SetRule",
    "SetsBy",
    "calibration_error",
    "conformity",
    "fit_labels",
    "fit_probabilities",
    "least_rows",
    "members",
    "prediction_sets",
    "reliability",
    "smallest_penalties",
    "tuned_penalties",
]
