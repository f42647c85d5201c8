"""Exact single-example dual problems."""

from __future__ import annotations

from topline.solvers.projections.batches import column_updates, envelope_losses
from topline.solvers.projections.columns import (
    column_kind,
    column_update,
    column_update_two,
    margins_or_empty,
    violations,
)
from topline.solvers.projections.entropy_batches import entropy_losses, entropy_updates
from topline.solvers.projections.euclidean import (
    project_bipartite_simplex,
    project_knapsack,
    project_topk_cone,
    project_topk_simplex_alpha,
    project_topk_simplex_beta,
)
from topline.solvers.projections.nearest import nearest_rows
from topline.solvers.projections.workspace import column_workspace

__all__ = [
    "column_kind",
    "column_update",
    "column_update_two",
    "column_updates",
    "column_workspace",
    "entropy_losses",
    "entropy_updates",
    "envelope_losses",
    "margins_or_empty",
    "nearest_rows",
    "project_bipartite_simplex",
    "project_knapsack",
    "project_topk_cone",
    "project_topk_simplex_alpha",
    "project_topk_simplex_beta",
    "violations",
]
