"""Calibration of scores: probabilities fitted on held-out rows, their quality, and conformal sets.

`probabilities` turns scores into probabilities, `quality` measures them, and `conformal` makes sets that hold
the right class with a stated probability.  Nothing here depends on how the scores were computed.
"""

from __future__ import annotations

from topline.solvers.calibration.conformal import (
    CalibrationRows,
    Weighing,
    conformity,
    least_rows,
    prediction_sets,
    smallest_weighings,
)
from topline.solvers.calibration.probabilities import ProbabilityMap, fit_labels, fit_probabilities
from topline.solvers.calibration.quality import (
    CONFIDENCE,
    Interval,
    ReliabilityBin,
    calibration_error,
    class_mean_interval,
    reliability,
    share_interval,
)
from topline.solvers.calibration.rules import (
    Calibration,
    SetRule,
    SetsBy,
    Weighings,
    members,
    tuned_weighings,
)
