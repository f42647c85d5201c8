"""Sweeps: what was tried on a dataset, and every answer that came of it.

Each has a folder:

sweeps/s0001/sweep.json             the grid and its dataset, sealed
sweeps/s0001/answers/000000.json    one answer each, sealed, numbered in order and never changed
sweeps/s0001/outcome.json           how it ended, once it has
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from topline.storage.errors import ConflictError, NotFoundError
from topline.storage.fingerprint import seal, unseal
from topline.storage.records import from_fields, now, plain
from topline.storage.schema import check_encoding, encoding
from topline.storage.stores import Store
from topline.storage.stores.numbered_folders import numbered_names, reserve, unknown
from topline.storage.stores.urls import join

SWEEP_ENCODING: Final = "topline-sweep"

_SWEEPS = "sweeps"
_LETTER = "s"
_RECORD = "sweep.json"
_OUTCOME = "outcome.json"
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
    """Folder of a sweep in its store."""
    return join(_SWEEPS, sweep_id)


def create_sweep(store: Store, config: Mapping[str, Any], dataset: str, dataset_digest: str) -> str:
    """Record a new sweep and return its id; racing callers get different ids."""
    sweep_id = reserve(store, _SWEEPS, _LETTER)
    record = {
        **encoding(SWEEP_ENCODING),
        "id": sweep_id,
        "created": now(),
        "config": plain(config),
        "dataset": dataset,
        "dataset_digest": dataset_digest,
    }
    store.write_bytes(join(sweep_folder(sweep_id), _RECORD), seal(record))
    return sweep_id


def read_sweep(store: Store, sweep_id: str) -> SweepRecord:
    """The sweep's record; `NotFoundError` naming the store's sweeps if there is none of that id."""
    path = join(sweep_folder(sweep_id), _RECORD)
    place = join(store.url, path)
    try:
        record = unseal(store.read_bytes(path), place)
    except NotFoundError:
        raise unknown(store, _SWEEPS, _LETTER, sweep_id) from None
    check_encoding(record, SWEEP_ENCODING, place)
    found = from_fields(SweepRecord, record, place)
    path = join(sweep_folder(sweep_id), _OUTCOME)
    if not store.exists(path):
        return found
    return replace(found, outcome=unseal(store.read_bytes(path), join(store.url, path)))


def list_sweeps(store: Store) -> list[SweepRecord]:
    """All sweeps, oldest first; one whose record was never written is none."""
    names = numbered_names(store, _SWEEPS, _LETTER)
    return [read_sweep(store, name) for name in names if store.exists(join(sweep_folder(name), _RECORD))]


def add_answer(store: Store, sweep_id: str, number: int, answer: Mapping[str, Any]) -> None:
    """Keep answer `number`; `ConflictError` where another process has already given one of that number."""
    path = join(sweep_folder(sweep_id), _ANSWERS, f"{number:06d}.json")
    if not store.put_if_absent(path, seal(plain(answer))):
        raise ConflictError(f"another process goes on with sweep {sweep_id}: wait for it, or stop it first")


def read_answers(store: Store, sweep_id: str) -> list[dict[str, Any]]:
    """All answers in their order."""
    folder = join(sweep_folder(sweep_id), _ANSWERS)
    paths = [join(folder, name) for name in store.list(folder) if name.endswith(".json")]
    return [unseal(store.read_bytes(path), join(store.url, path)) for path in paths]


def finish_sweep(store: Store, sweep_id: str, outcome: Mapping[str, Any]) -> None:
    """Record how a sweep ended; one that went on replaces it."""
    store.write_bytes(join(sweep_folder(sweep_id), _OUTCOME), seal({"finished": now(), **plain(outcome)}))
