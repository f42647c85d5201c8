"""What dual variables say about the training rows: what each would be called by a model that never saw it.

`leave_one_out` gives every row a margin with a proven interval, `label_suspects` ranks the rows by it,
`boundary_rows` names those that carry a class, and `near_duplicates` finds rows that lie almost on each
other.
"""

from __future__ import annotations

from topline.solvers.inspection.boundary import boundary_rows
from topline.solvers.inspection.dual_point import DualPoint
from topline.solvers.inspection.leave_one_out import (
    LeaveOneOut,
    judged_rows,
    leave_one_out,
    leave_out_each,
    trained_point,
)

__all__ = [
    "DualPoint",
    "LeaveOneOut",
    "boundary_rows",
    "judged_rows",
    "leave_one_out",
    "leave_out_each",
    "trained_point",
]
