"""How runs ended, with a digest of the history up to there: what a report shows is what training wrote."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from topline.storage.errors import IntegrityError, NotFoundError
from topline.storage.runs.history import history_path
from topline.storage.runs.records import end_run, read_run
from topline.storage.stores import Store
from topline.storage.stores.urls import join

# Read at once.
_CHUNK = 1 << 20
_HISTORY = "history"


def finish_run(store: Store, run_id: str, outcome: Mapping[str, Any]) -> None:
    """Record how a run ended (status, model, gap, ...); a resumed run replaces it.

    The outcome holds the length and the digest of the history so far, under "history".
    """
    read_run(store, run_id)
    size, digest = _history_digest(store, run_id, None)
    end_run(store, run_id, {**outcome, _HISTORY: {"bytes": size, "sha256": digest}})


def check_history(store: Store, run_id: str) -> None:
    """Raise `IntegrityError` where the history no longer begins as it did when the run ended."""
    outcome = read_run(store, run_id).outcome
    noted = None if outcome is None else outcome.get(_HISTORY)
    if noted is None:
        return
    size, digest = _history_digest(store, run_id, int(noted["bytes"]))
    if (size, digest) != (noted["bytes"], noted["sha256"]):
        raise IntegrityError(
            f"{join(store.url, history_path(run_id))} is not the history that the run ended with;"
            " restore it from a copy"
        )


def _history_digest(store: Store, run_id: str, limit: int | None) -> tuple[int, str]:
    """Return the length and SHA-256 of a history's first `limit` bytes, all of its parts in a row."""
    digest, seen, part, offset = hashlib.sha256(), 0, 0, 0
    while limit is None or seen < limit:
        length = _CHUNK if limit is None else min(_CHUNK, limit - seen)
        try:
            data = store.read_range(history_path(run_id, part), offset, length)
        except NotFoundError:
            break
        if data:
            digest.update(data)
            seen, offset = seen + len(data), offset + len(data)
        else:
            part, offset = part + 1, 0
    return seen, digest.hexdigest()
