"""Exact single-example dual problems."""

from __future__ import annotations

from solvers.projections.batches import column_updates, envelope_losses
from solvers.projections.columns import (
    column_kind,
    column_update,
    column_update_two,
    margins_or_empty,
    violations,
)
from solvers.projections.workspace import column_workspace

__all__ = [
    "column_kind",
    "column_update",
    "column_update_two",
    "column_updates",
    "column_workspace",
    "envelope_losses",
    "margins_or_empty",
    "violations",
]
