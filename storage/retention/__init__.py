"""Retention: what a written rule lets go, and removing it from under nobody who reads it.

`plan_pruning` says what may go and why, without changing anything; `prune` lets it go.  What a champion, a
run under way or a younger version still refers to stays.
"""

from __future__ import annotations

from topline.storage.retention.execution import Pruned, prune, remove_now
from topline.storage.retention.plan import Going, PruningPlan, RetentionPolicy, plan_pruning
