"""Exact dual problems of a single example: what the column updates of the losses come down to.

Euclidean and entropic projections on the dual domains, as compiled functions that work inside buffers of
their caller.  They know no loss: `topline.solvers.losses` is built on them.
"""

from __future__ import annotations

from topline.solvers.projections.columns import ColumnProblem, column_function, column_workspace
