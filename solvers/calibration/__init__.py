"""What scores are worth: probabilities fitted on held-out rows, their quality, and sets with a guarantee.

`probabilities` turns scores into probabilities, `quality` measures them, and `conformal` makes sets that hold
the right class with a stated probability.  Nothing here knows how the scores came about.
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
