"""A run's state on disk: what its checkpoints hold, and the dataset and problem that they belong to."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.solvers.core.state import SolverState
from topline.storage.arrays import DualSource
from topline.storage.runs import Checkpoint, latest_checkpoint, save_checkpoint
from topline.storage.stores import Store

logger = logging.getLogger(__name__)

# Prefix of the arrays in which a checkpoint keeps what the method remembers.
MEMORY = "memory."

# Fields of SolverState that are single numbers, by their stored names; W is an array, and the pending step is
# applied before saving.
SCALARS = {
    "round": "round", "b": "conjugate_mean", "aa": "mean_sq_dual", "passes": "passes", "seconds": "seconds",
    "loss_at_zero": "loss_at_zero", "best_primal": "best_primal", "best_dual": "best_dual", "exact": "exact",
}  # fmt: skip


@dataclass(frozen=True)
class RunPlace:
    """Where a run keeps its things, and what makes it itself: dataset and problem, by name."""

    store: Store
    run_id: str
    fingerprint: Mapping[str, Any]
    transforms: Mapping[str, NDArray[Any]]
    keep_duals: bool


def save_state(place: RunPlace, state: SolverState, duals: DualSource | None) -> int:
    """Save `state` and, where they are kept, the dual variables with its step applied; return the bytes."""
    memory = {MEMORY + name: array for name, array in state.memory.items()}
    arrays = {"W": state.W, **memory, **place.transforms}
    scalars = {stored: getattr(state, name) for stored, name in SCALARS.items()}
    finite = {name: value if value is None or np.isfinite(value) else None for name, value in scalars.items()}
    meta = {"fingerprint": dict(place.fingerprint), "state": finite}
    return save_checkpoint(place.store, place.run_id, state.round, arrays, duals, meta)


def load_state(checkpoint: Checkpoint) -> SolverState:
    """Return the state that `save_state` saved; its duals have every step applied already."""
    arrays = {name: np.asarray(array, dtype=np.float64) for name, array in checkpoint.arrays.items()}
    memory = {name.removeprefix(MEMORY): array for name, array in arrays.items() if name.startswith(MEMORY)}
    blank = SolverState(round=0, W=arrays["W"], memory=memory)
    stored = checkpoint.meta["state"]
    known = {name: stored[key] for key, name in SCALARS.items() if stored.get(key) is not None}
    return replace(blank, **known)


def find_checkpoint(place: RunPlace) -> Checkpoint | None:
    """Return the newest whole checkpoint of the run; `MismatchError` names what is not the same any more."""
    found = latest_checkpoint(place.store, place.run_id, fingerprint=place.fingerprint)
    for damage in () if found is None else found.skipped:
        logger.warning("a checkpoint is skipped: %s", damage)
    return found
