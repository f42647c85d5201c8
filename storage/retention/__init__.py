"""Retention: what a policy releases, and its removal while nobody reads it.

`plan_pruning` says what may go and why, without changing anything; `prune` removes it.  Whatever a champion,
a running run or a younger version still refers to stays.
"""

from __future__ import annotations

from topline.storage.retention.plan import (
    Going,
    Pruned,
    PruningPlan,
    RetentionPolicy,
    plan_pruning,
    prune,
    remove_now,
    staged_lately,
)
