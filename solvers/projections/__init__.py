"""Exact dual problems of a single example: what one column update of every loss comes down to.

Euclidean and entropic projections on the dual domains are written as compiled functions that work inside
buffers of their caller; `column_update` is the one of any loss, `column_updates` and `nearest_rows` take many
rows and check them.  Sweeps over examples, `topline.solvers.blocks`, are built on these.
"""

from __future__ import annotations

from topline.solvers.projections.batches import column_updates, nearest_rows
from topline.solvers.projections.columns import (
    column_kind,
    column_update,
    margins_or_empty,
    violations,
)
from topline.solvers.projections.ordering import column_workspace

__all__ = [
    "column_kind",
    "column_update",
    "column_updates",
    "column_workspace",
    "margins_or_empty",
    "nearest_rows",
    "violations",
]
