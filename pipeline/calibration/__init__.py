"""What a stored model's held-out rows say of its scores: probabilities, and the rows behind sets of classes.

`calibration_of` finds it with the model, or makes it in one pass over the validation rows and one over the
calibration rows and stores it.  Ties of sets are settled by `row_draws`.
"""

from __future__ import annotations

from topline.pipeline.calibration.making import calibration_of
from topline.pipeline.calibration.stored import ROW_ARRAYS, in_words, row_draws

__all__ = ["ROW_ARRAYS", "calibration_of", "in_words", "row_draws"]
