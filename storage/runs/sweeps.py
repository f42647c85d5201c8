"""Sweeps: the grid tried on a dataset, and every answer so far.

sweeps/s0001/sweep.json             the grid and its dataset, sealed
sweeps/s0001/answers/000000.json    one answer each, sealed, numbered in order and never changed
sweeps/s0001/outcome.json           how it ended, once it has
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from topline.storage.errors import ConflictError, StorageError
from topline.storage.findings import Finding
from topline.storage.schema import SWEEP_ENCODING
from topline.storage.stores import Store
from topline.storage.stores.numbered_folders import RecordedFolders
from topline.storage.stores.sealed import put_own, unsealed
from topline.storage.stores.urls import join

_ANSWERS, _COUNT = "answers", "answer_count"


@dataclass(frozen=True)
class SweepRecord:
    """A sweep: `id` "s0001", `config` as resolved, the dataset's id and digest; `outcome` once it ended."""

    id: str
    created: str
    config: Mapping[str, Any]
    dataset: str
    dataset_digest: str
    outcome: Mapping[str, Any] | None = None


SWEEPS = RecordedFolders("sweeps", "s", "sweep.json", SWEEP_ENCODING, SweepRecord)
read_sweep, list_sweeps, sweep_folder = SWEEPS.read, SWEEPS.all, SWEEPS.path


def create_sweep(store: Store, config: Mapping[str, Any], dataset: str, dataset_digest: str) -> str:
    """Record a new sweep and return its id."""
    return SWEEPS.create(store, {"config": config, "dataset": dataset, "dataset_digest": dataset_digest})


def add_answer(store: Store, sweep_id: str, number: int, answer: Mapping[str, Any]) -> None:
    """Add answer `number`; `ConflictError` if another process has already added it."""
    path = SWEEPS.path(sweep_id, _ANSWERS, f"{number:06d}.json")
    if not put_own(store, path, answer):
        raise ConflictError(f"another process works on sweep {sweep_id}: wait for it, or stop it first")


def read_answers(store: Store, sweep_id: str, first: int = 0) -> list[dict[str, Any]]:
    """Return the answers from number `first` on, in order; `NotFoundError` naming a missing one."""
    folder = SWEEPS.path(sweep_id, _ANSWERS)
    count = sum(name.endswith(".json") for name in store.list(folder))
    return [unsealed(store, join(folder, f"{number:06d}.json")) for number in range(first, count)]


def finish_sweep(store: Store, sweep_id: str, outcome: Mapping[str, Any]) -> None:
    """Record how a sweep ended and how many answers it has, replacing an earlier outcome."""
    SWEEPS.finish(store, sweep_id, {**outcome, _COUNT: len(read_answers(store, sweep_id))})


def sweep_findings(store: Store) -> Iterator[Finding]:
    """Yield what is wrong with the sweeps."""
    fix = "restore it from a copy, or start a new sweep"
    for name in SWEEPS.recorded(store):
        try:
            sweep, answers = read_sweep(store, name), read_answers(store, name)
        except StorageError as error:
            yield Finding("sweep", sweep_folder(name), str(error), fix)
            continue
        if sweep.outcome is None:
            what = "it has not ended: it was stopped, or its outcome is lost"
            path = join(sweep_folder(name), "outcome.json")
            yield Finding("sweep", path, what, "continue it with topline sweep --resume", harmless=True)
        wanted = (sweep.outcome or {}).get(_COUNT, len(answers))
        if wanted != len(answers):
            what = f"it has {len(answers)} answers, and ended with {wanted}"
            yield Finding("sweep", join(sweep_folder(name), _ANSWERS), what, fix)
