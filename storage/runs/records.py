"""Runs: what was started with which configuration, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from topline.storage.errors import NotFoundError
from topline.storage.fingerprint import seal, unseal
from topline.storage.records import from_fields, now, plain
from topline.storage.schema import RUN_ENCODING, check_encoding, encoding
from topline.storage.stores import Store
from topline.storage.stores.numbered_folders import numbered_names, reserve, unknown
from topline.storage.stores.urls import join

_RUNS = "runs"
_LETTER = "r"
_RECORD = "run.json"
_OUTCOME = "outcome.json"


@dataclass(frozen=True)
class RunRecord:
    """A run: `id` "r0001", `config` as resolved, the dataset's id; a resume must match `fingerprint`.

    `outcome` is None while it runs (or was killed), then what `finish_run` was given.
    """

    id: str
    created: str
    config: Mapping[str, Any]
    dataset: str
    fingerprint: Mapping[str, Any]
    outcome: Mapping[str, Any] | None = None


def run_folder(run_id: str) -> str:
    """Folder of a run in its store."""
    return join(_RUNS, run_id)


def create_run(
    store: Store,
    config: Mapping[str, Any],
    *,
    dataset: str = "",
    fingerprint: Mapping[str, Any] | None = None,
) -> str:
    """Record a new run and return its id; racing callers get different ids.  Its URL is <store>/runs/<id>."""
    run_id = reserve(store, _RUNS, _LETTER)
    record = {
        **encoding(RUN_ENCODING),
        "id": run_id,
        "created": now(),
        "config": plain(config),
        "dataset": dataset,
        "fingerprint": plain(fingerprint or {}),
    }
    store.write_bytes(join(run_folder(run_id), _RECORD), seal(record))
    return run_id


def read_run(store: Store, run_id: str) -> RunRecord:
    """The run's record; `NotFoundError` naming the store's runs if there is none of that id."""
    path = join(run_folder(run_id), _RECORD)
    try:
        record = unseal(store.read_bytes(path), join(store.url, path))
    except NotFoundError:
        raise unknown(store, _RUNS, _LETTER, run_id) from None
    check_encoding(record, RUN_ENCODING, join(store.url, path))
    run = from_fields(RunRecord, record, join(store.url, path))
    return replace(run, outcome=_outcome(store, run_id))


def finish_run(store: Store, run_id: str, outcome: Mapping[str, Any]) -> None:
    """Record how a run ended (status, model, gap, ...); a resumed run replaces it."""
    read_run(store, run_id)
    record = {"finished": now(), **plain(outcome)}
    store.write_bytes(join(run_folder(run_id), _OUTCOME), seal(record))


def list_runs(store: Store) -> list[RunRecord]:
    """All runs, oldest first; one whose record was never written is no run."""
    return [read_run(store, name) for name in run_names(store)]


def run_names(store: Store) -> list[str]:
    """Ids of all runs, oldest first."""
    names = numbered_names(store, _RUNS, _LETTER)
    return [name for name in names if store.exists(join(run_folder(name), _RECORD))]


def _outcome(store: Store, run_id: str) -> dict[str, Any] | None:
    path = join(run_folder(run_id), _OUTCOME)
    try:
        return unseal(store.read_bytes(path), join(store.url, path))
    except NotFoundError:
        return None
