"""What a model's dual variables know about the rows that it was trained on: `topline inspect`.

Each training row is judged by the model as it would be without it, every other row by the model itself; what
cannot be proven is called open.  The result is a table to correct labels in.  `suggest_rows` chooses among
new rows those to label next.
"""

from __future__ import annotations

from topline.pipeline.inspection.suggest import Suggestions, suggest_rows
from topline.pipeline.inspection.suspects import Inspection, inspect_model
