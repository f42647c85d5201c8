"""Runs: their configurations and outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from topline.storage.schema import RUN_ENCODING
from topline.storage.stores import Store
from topline.storage.stores.numbered_folders import RecordedFolders


@dataclass(frozen=True)
class RunRecord:
    """A run: `id` "r0001", `config` as resolved, the dataset's id; a resume must match `fingerprint`.

    `outcome` is None until `finish_run` sets it, with length and digest of the history.
    """

    id: str
    created: str
    config: Mapping[str, Any]
    dataset: str
    fingerprint: Mapping[str, Any]
    outcome: Mapping[str, Any] | None = None


RUNS = RecordedFolders("runs", "r", "run.json", RUN_ENCODING, RunRecord)
read_run, list_runs, run_names = RUNS.read, RUNS.all, RUNS.recorded


def create_run(
    store: Store,
    config: Mapping[str, Any],
    *,
    dataset: str = "",
    fingerprint: Mapping[str, Any] | None = None,
) -> str:
    """Record a new run and return its id; its URL is <store>/runs/<id>."""
    return RUNS.create(store, {"config": config, "dataset": dataset, "fingerprint": fingerprint or {}})
