"""Exact solutions of the dual problem of a single example, the core of every column update.

Euclidean and entropic projections on the dual domains, as compiled functions that work in buffers of their
caller.  They know no losses: `topline.solvers.losses` is built on them.
"""

from __future__ import annotations

from topline.solvers.projections.columns import ColumnProblem, column_function, column_workspace
