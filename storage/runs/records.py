"""Runs: what was started with which configuration, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from topline.storage.records import from_fields
from topline.storage.schema import RUN_ENCODING
from topline.storage.stores import Store
from topline.storage.stores.numbered_folders import RecordedFolders
from topline.storage.stores.urls import join

_RUNS = RecordedFolders("runs", "r", "run.json", RUN_ENCODING)


@dataclass(frozen=True)
class RunRecord:
    """A run: `id` "r0001", `config` as resolved, the dataset's id; a resume must match `fingerprint`.

    `outcome` is None while it runs (or was killed), then what `finish_run` was given, with
    the length and digest of its history.
    """

    id: str
    created: str
    config: Mapping[str, Any]
    dataset: str
    fingerprint: Mapping[str, Any]
    outcome: Mapping[str, Any] | None = None


def run_folder(run_id: str) -> str:
    """Return the folder of a run in its store."""
    return _RUNS.path(run_id)


def create_run(
    store: Store,
    config: Mapping[str, Any],
    *,
    dataset: str = "",
    fingerprint: Mapping[str, Any] | None = None,
) -> str:
    """Record a new run and return its id; racing callers get different ids.  Its URL is <store>/runs/<id>."""
    return _RUNS.create(store, {"config": config, "dataset": dataset, "fingerprint": fingerprint or {}})


def read_run(store: Store, run_id: str) -> RunRecord:
    """Return the run's record; `NotFoundError` naming the store's runs if there is none of that id."""
    return from_fields(RunRecord, _RUNS.read(store, run_id), join(store.url, run_folder(run_id)))


def end_run(store: Store, run_id: str, outcome: Mapping[str, Any]) -> None:
    """Record an outcome, in the place of an earlier one; `finish_run` adds what the history was."""
    _RUNS.finish(store, run_id, outcome)


def remove_run(store: Store, run_id: str, reason: str) -> None:
    """Remove a run with its history and checkpoints; its number is never given again."""
    _RUNS.remove(store, run_id, reason)


def removed_runs(store: Store) -> list[str]:
    """Return the ids of runs that were there and were removed."""
    return _RUNS.removed(store)


def list_runs(store: Store) -> list[RunRecord]:
    """Return all runs, oldest first; one whose record was never written is no run."""
    return [read_run(store, name) for name in run_names(store)]


def run_names(store: Store) -> list[str]:
    """Return the ids of all runs, oldest first."""
    return _RUNS.recorded(store)
