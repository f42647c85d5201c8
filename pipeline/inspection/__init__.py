"""What a model's dual variables say about its training rows: `topline inspect`.

Each training row is judged by the model without it, every other row by the model itself; undecided cases are
called open.  The result is a table in which to correct labels.  `suggest_rows` chooses new rows to label
next.
"""

from __future__ import annotations

from topline.pipeline.inspection.suggest import Suggestions, suggest_rows
from topline.pipeline.inspection.suspects import Inspection, inspect_model
