"""Runs: what was started with which configuration, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storage.stores import Store


@dataclass(frozen=True)
class RunRecord:
    """A run: `id` "r0001", `config` as resolved, the dataset's id, and the `fingerprint` that a resume must match.

    `outcome` is None while it runs (or was killed), then what `finish_run` was given.
    """

    id: str
    created: str
    config: Mapping[str, Any]
    dataset: str
    fingerprint: Mapping[str, Any]
    outcome: Mapping[str, Any] | None = None


def create_run(
    store: Store, config: Mapping[str, Any], *, dataset: str = "", fingerprint: Mapping[str, Any] | None = None
) -> str:
    """Record a new run and return its id; racing callers get different ids.  Its URL is <store>/runs/<id>."""
    raise NotImplementedError


def read_run(store: Store, run_id: str) -> RunRecord:
    """The run's record; `NotFoundError` naming the store's runs if there is none of that id."""
    raise NotImplementedError


def finish_run(store: Store, run_id: str, outcome: Mapping[str, Any]) -> None:
    """Record how a run ended (status, model, gap, ...); a resumed run replaces it."""
    raise NotImplementedError


def list_runs(store: Store) -> list[RunRecord]:
    """All runs, oldest first."""
    raise NotImplementedError
