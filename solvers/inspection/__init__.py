"""What dual variables say about the training rows: what each would be called by a model that never saw it.

`leave_one_out` gives every row a margin with a proven interval, and ranks the rows by it.  `second_opinion`
asks a softmax about the labels of a hinge.  `boundary_rows` names those that carry a class, and
`near_duplicates` finds rows that lie almost on each other.
"""

from __future__ import annotations

from topline.solvers.inspection.bounds import margins_of
from topline.solvers.inspection.dual_point import DualPoint
from topline.solvers.inspection.leave_one_out import (
    LeaveOneOut,
    boundary_rows,
    judged_rows,
    leave_one_out,
    leave_out_each,
    trained_point,
)
from topline.solvers.inspection.neighbours import Pairs, near_duplicates, nearest_neighbours, unit_rows
from topline.solvers.inspection.second_opinion import has_second_opinion, second_opinion, softmax_point
