"""Checkpoints of a run: named arrays, dual variables and a small record, published in one step."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from topline.storage.arrays import DualSource, StoredDuals
from topline.storage.arrays.groups import ArrayGroup, discard_group, whole_or_nothing, write_group
from topline.storage.errors import IntegrityError, MismatchError, NotFoundError, StorageError
from topline.storage.records import now, plain
from topline.storage.runs.records import RUNS, RunLock
from topline.storage.schema import CHECKPOINT_ENCODING, encoding
from topline.storage.stores import FileSet, Store
from topline.storage.stores.sealed import put_own, read_record, write_record
from topline.storage.stores.urls import join

KEPT = 2
"""So many newest checkpoints of a run are kept."""

_ALONE = RunLock()
_RECORD, _FOLDER = re.compile(r"^(\d{8})\.json$"), re.compile(r"^(\d{8})-")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint with checked digests; `skipped` names newer ones that were damaged."""

    run_id: str
    round: int
    arrays: Mapping[str, NDArray[Any]]
    meta: Mapping[str, Any]
    skipped: tuple[str, ...]
    _group: ArrayGroup = field(repr=False, compare=False)

    @property
    def has_duals(self) -> bool:
        """Whether dual variables were stored."""
        return self._group.has_duals

    def dual_blocks(self) -> StoredDuals:
        """Return all dual variables, readable as consecutive blocks (start, stop, rows) or by rows."""
        return self._group.dual_blocks()


def save_checkpoint(
    store: Store,
    run_id: str,
    round: int,  # noqa: A002 - the word of the field
    arrays: Mapping[str, NDArray[Any]],
    duals: DualSource | None,
    meta: Mapping[str, Any],
    lock: RunLock = _ALONE,
) -> int:
    """Publish the state after `round`, then delete all but the last two checkpoints; return its bytes.

    `duals` writes the dual variables in parts, from as many processes as hold some; the record, written last,
    makes the checkpoint visible.  Leftovers of a crashed save are removed first, to make room.  `meta` is a
    JSON object; its "fingerprint" (an object) identifies data and configuration.  Saving a round again
    replaces it.  `LeaseLostError` if another process took over the `lock` meanwhile; its checkpoints stay.
    """
    _prune(store, run_id, lock)
    folder = join(checkpoint_folder(run_id), f"{round:08d}-{uuid.uuid4().hex[:8]}")
    with whole_or_nothing(store, folder):
        entries = write_group(store, folder, CHECKPOINT_ENCODING, arrays, duals)
    record = {
        "round": round,
        "created": now(),
        "folder": folder,
        "files": [entry.to_json() for entry in entries],
        "meta": meta,
        **encoding(CHECKPOINT_ENCODING),
    }
    lock.check()
    if not put_own(store, _record_path(run_id, round), record):
        lock.check()
        write_record(store, _record_path(run_id, round), CHECKPOINT_ENCODING, record)
    lock.check()
    _prune(store, run_id, lock)
    return sum(entry.size for entry in entries)


def latest_checkpoint(
    store: Store, run_id: str, *, fingerprint: Mapping[str, Any] | None = None, check_duals: bool = True
) -> Checkpoint | None:
    """Return the newest intact checkpoint of the run, None if there is none at all.

    Dual variables are read in full for this, without keeping them, unless `check_duals` is off.  Raises
    `MismatchError`, naming the keys that differ, if its fingerprint is not `fingerprint`, and
    `IntegrityError` if there are checkpoints but all are damaged.
    """
    skipped: list[str] = []
    rounds = checkpoint_rounds(store, run_id)
    for round_number in reversed(rounds):
        try:
            record, files = read_checkpoint_record(store, run_id, round_number)
            if fingerprint is not None:
                # Checked before reading arrays, which may be large; a missing fingerprint differs in every
                # key.
                _check_fingerprint(run_id, record["meta"].get("fingerprint", {}), fingerprint)
            group = ArrayGroup(files)
            group.check()
            if group.has_duals and check_duals:
                group.dual_blocks().check()
            arrays = {name: group.array(name) for name in group.arrays}
        except (IntegrityError, NotFoundError) as error:
            skipped.append(str(error))
            continue
        return Checkpoint(run_id, round_number, arrays, record["meta"], tuple(skipped), group)
    if checkpoint_rounds(store, run_id) != rounds:
        # Newer checkpoints replaced these while they were read: another training has taken over.
        return latest_checkpoint(store, run_id, fingerprint=fingerprint, check_duals=check_duals)
    if skipped:
        raise IntegrityError(f"no checkpoint of run {run_id} is whole ({skipped[0]}); start a new run")
    return None


def checkpoint_folder(run_id: str) -> str:
    """Return the folder of a run's checkpoints in its store."""
    return RUNS.path(run_id, "checkpoints")


def checkpoint_rounds(store: Store, run_id: str) -> list[int]:
    """Return the rounds of the published checkpoints, ascending."""
    names = store.list(checkpoint_folder(run_id))
    return [int(match.group(1)) for name in names if (match := _RECORD.match(name))]


def read_checkpoint_record(store: Store, run_id: str, round_number: int) -> tuple[dict[str, Any], FileSet]:
    """Return a checkpoint's record and files; `IntegrityError` if the record is damaged."""
    record = read_record(store, _record_path(run_id, round_number), CHECKPOINT_ENCODING)
    owner = f"checkpoint {round_number} of run {run_id}"
    return record, FileSet.recorded(store, record["folder"], record["files"], owner)


def _check_fingerprint(run_id: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    wanted = plain(expected)
    differing = sorted(key for key in {*found, *wanted} if found.get(key) != wanted.get(key))
    if differing:
        raise MismatchError(
            f"run {run_id} cannot be resumed: its {', '.join(differing)} changed since;"
            " undo the change or start a new run"
        )


def stray_folders(store: Store, run_id: str) -> dict[str, int]:
    """Return the folders that no record names, with their rounds: their writer is at work or was killed.

    Listings may lag, so the record of a folder's own round is read; if it is damaged, its folder is unknown
    and none is returned.
    """
    root = checkpoint_folder(run_id)
    strays: dict[str, int] = {}
    for name in store.list(root):
        folder, found = join(root, name), _FOLDER.match(name)
        if found is None:
            continue
        of = int(found.group(1))
        try:
            named = read_checkpoint_record(store, run_id, of)[1].folder
        except NotFoundError:
            named = ""
        except StorageError:
            continue
        if named != folder:
            strays[folder] = of
    return strays


def _prune(store: Store, run_id: str, lock: RunLock) -> None:
    """Delete checkpoints beyond the last `KEPT`, and folders that no record names.

    Without locks the writer of a later round's folder may only be stopped, and put its record yet.
    """
    rounds = checkpoint_rounds(store, run_id)
    for old in rounds[:-KEPT]:
        store.delete(_record_path(run_id, old))
    newest = max(rounds, default=0)
    strays = [name for name, of in stray_folders(store, run_id).items() if store.locks or of <= newest]
    # What was there before another process took over is none of its checkpoints.
    lock.check()
    for folder in strays:
        discard_group(store, folder)


def _record_path(run_id: str, round_number: int) -> str:
    return join(checkpoint_folder(run_id), f"{round_number:08d}.json")
