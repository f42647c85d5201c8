"""A run's state on disk: what its checkpoints hold, and the dataset and problem they belong to."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.solvers.core.codec import decoded, encoded
from topline.solvers.core.state import Point, SolverState
from topline.solvers.methods.quasi_newton import LbfgsMemory
from topline.storage.arrays import DualSource
from topline.storage.runs import Checkpoint, latest_checkpoint, save_checkpoint
from topline.storage.stores import Store

logger = logging.getLogger(__name__)

# Shown for a checkpoint of version 0.1.
EARLIER_FORMAT = (
    "the checkpoint of round %d is of an earlier format: the run goes on from its weights and dual variables "
    "alone"
)
# Arrays of such a checkpoint; the first present belongs to its dual variables or is the best W.
_EARLIER_WEIGHTS = ("memory.newton.W_dual", "memory.mixture.W", "memory.best", "W")


@dataclass(frozen=True)
class RunPlace:
    """Where a run keeps its files, and what identifies it, by name: dataset and problem."""

    store: Store
    run_id: str
    fingerprint: Mapping[str, Any]
    transforms: Mapping[str, NDArray[Any]]
    keep_duals: bool


def save_state(place: RunPlace, state: SolverState, duals: DualSource | None) -> int:
    """Save `state` and any dual variables, with its pending step applied; return the bytes."""
    plain, arrays = encoded(state.with_point(pending_step=None))
    meta = {"fingerprint": dict(place.fingerprint), "state": plain}
    return save_checkpoint(
        place.store, place.run_id, state.round, {**arrays, **place.transforms}, duals, meta
    )


def load_state(checkpoint: Checkpoint) -> SolverState:
    """Return the saved state; its dual variables have every step applied.

    Raises InvalidProblemError for the state of another version that this one does not know.
    """
    stored = checkpoint.meta["state"]
    if not is_of_earlier_format(checkpoint):
        state: SolverState = decoded(stored, checkpoint.arrays)
        return state
    W = next(checkpoint.arrays[name] for name in _EARLIER_WEIGHTS if name in checkpoint.arrays)
    point = Point(stored["round"], np.asarray(W, dtype=np.float64), stored["b"], stored["aa"])
    memory = LbfgsMemory() if "memory.best" in checkpoint.arrays else None
    return SolverState(point, memory=memory, passes=stored["passes"], seconds=stored["seconds"])


def is_of_earlier_format(checkpoint: Checkpoint) -> bool:
    """Return whether this version can no longer read the method's memory."""
    return "is" not in checkpoint.meta["state"]


def find_checkpoint(place: RunPlace) -> Checkpoint | None:
    """Return the run's newest whole checkpoint; `MismatchError` names what has changed since."""
    found = latest_checkpoint(place.store, place.run_id, fingerprint=place.fingerprint)
    for damage in () if found is None else found.skipped:
        logger.warning("a checkpoint is skipped: %s", damage)
    return found
