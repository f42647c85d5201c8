"""Sweeps: what was tried on a dataset, and every answer so far.

Each has a folder:

sweeps/s0001/sweep.json             the grid and its dataset, sealed
sweeps/s0001/answers/000000.json    one answer each, sealed, numbered in order and never changed
sweeps/s0001/outcome.json           how it ended, once it has
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from topline.storage.errors import ConflictError
from topline.storage.fingerprint import seal, unseal
from topline.storage.records import from_fields, plain
from topline.storage.schema import SWEEP_ENCODING
from topline.storage.stores import Store
from topline.storage.stores.numbered_folders import RecordedFolders
from topline.storage.stores.urls import join

_SWEEPS = RecordedFolders("sweeps", "s", "sweep.json", SWEEP_ENCODING)
_ANSWERS = "answers"


@dataclass(frozen=True)
class SweepRecord:
    """A sweep: `id` "s0001", `config` as resolved, the dataset's id and digest; `outcome` once it ended."""

    id: str
    created: str
    config: Mapping[str, Any]
    dataset: str
    dataset_digest: str
    outcome: Mapping[str, Any] | None = None


def sweep_folder(sweep_id: str) -> str:
    """Return the folder of a sweep in its store."""
    return _SWEEPS.path(sweep_id)


def create_sweep(store: Store, config: Mapping[str, Any], dataset: str, dataset_digest: str) -> str:
    """Record a new sweep and return its id; racing callers get different ids."""
    return _SWEEPS.create(store, {"config": config, "dataset": dataset, "dataset_digest": dataset_digest})


def read_sweep(store: Store, sweep_id: str) -> SweepRecord:
    """Return the sweep's record; `NotFoundError` naming the store's sweeps if there is none of that id."""
    return from_fields(SweepRecord, _SWEEPS.read(store, sweep_id), join(store.url, sweep_folder(sweep_id)))


def add_answer(store: Store, sweep_id: str, number: int, answer: Mapping[str, Any]) -> None:
    """Add answer `number`; `ConflictError` where another process has already added one of that number."""
    path = _SWEEPS.path(sweep_id, _ANSWERS, f"{number:06d}.json")
    if not store.put_if_absent(path, seal(plain(answer))):
        raise ConflictError(f"another process works on sweep {sweep_id}: wait for it, or stop it first")


def read_answers(store: Store, sweep_id: str) -> list[dict[str, Any]]:
    """Return all answers in their order."""
    folder = _SWEEPS.path(sweep_id, _ANSWERS)
    paths = [join(folder, name) for name in store.list(folder) if name.endswith(".json")]
    return [unseal(store.read_bytes(path), join(store.url, path)) for path in paths]


def finish_sweep(store: Store, sweep_id: str, outcome: Mapping[str, Any]) -> None:
    """Record how a sweep ended; one that was continued replaces it."""
    _SWEEPS.finish(store, sweep_id, outcome)
