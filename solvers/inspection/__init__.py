"""Inspection of training rows by their dual variables: how a model trained without each would classify it.

`leave_one_out` gives every row a margin with a certified interval, and ranks the rows by it.
`second_opinion` asks a softmax about the labels of a hinge.  `boundary_rows` names the rows that carry a
class, and `near_duplicates` finds almost identical rows.
"""

from __future__ import annotations

from topline.solvers.inspection.leave_one_out import (
    DualPoint,
    LeaveOneOut,
    boundary_rows,
    has_second_opinion,
    judged_rows,
    leave_one_out,
    leave_out_each,
    margins_of,
    second_opinion,
    softmax_point,
    trained_point,
)
from topline.solvers.inspection.neighbours import Pairs, near_duplicates, nearest_neighbours, unit_rows
