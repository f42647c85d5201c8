"""Runs, their histories and their checkpoints."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.storage.samples import bucket_when_slow
from tests.storage.test_integrity import flip_first
from topline.storage.arrays import from_rows
from topline.storage.errors import FormatError, IntegrityError, MismatchError, NotFoundError, StorageError
from topline.storage.runs import (
    HistoryWriter,
    create_run,
    finish_run,
    latest_checkpoint,
    list_runs,
    read_history,
    read_run,
    save_checkpoint,
)
from topline.storage.runs.checkpoints import KEPT, checkpoint_rounds
from topline.storage.runs.history import history_path
from topline.storage.stores import Store

A = np.random.default_rng(0).standard_normal((50, 3))
PRINT = {"dataset": "d0001-abc", "loss": {"k": 5}, "C": 1.0}


def save(store: Store, round_number: int, **changes: Any) -> None:
    arrays = {"W": np.full((4, 3), float(round_number))}
    meta = {"fingerprint": PRINT, "dual": 0.5, **changes}
    save_checkpoint(
        store, "r0001", round_number, arrays, from_rows([(0, 20, A[:20]), (20, 50, A[20:])]), meta
    )


@bucket_when_slow
def test_a_run_and_how_it_ended(any_store: Store) -> None:
    run_id = create_run(
        any_store, {"C": np.float64(1.0), "tol": (1, 2)}, dataset="d0001-abc", fingerprint=PRINT
    )
    assert run_id == "r0001"
    run = read_run(any_store, run_id)
    assert run.config == {"C": 1.0, "tol": [1, 2]}
    assert run.fingerprint == PRINT
    assert run.outcome is None
    finish_run(any_store, run_id, {"status": "INTERRUPTED"})
    finish_run(any_store, run_id, {"status": "SOLVED", "gap": 1e-4})
    assert (read_run(any_store, run_id).outcome or {})["status"] == "SOLVED"
    assert create_run(any_store, {}) == "r0002"
    assert [run.id for run in list_runs(any_store)] == ["r0001", "r0002"]
    with pytest.raises(NotFoundError, match="no run r0009; it has r0001, r0002"):
        read_run(any_store, "r0009")


def test_history_is_read_as_it_was_written(any_store: Store) -> None:
    assert read_history(any_store, "r0001") == []
    with HistoryWriter(any_store, "r0001") as writer:
        writer.append({"round": 0, "gap": np.float32(0.5), "status": "ü"})
        writer.append({"round": np.int64(1), "gap": math.inf, "more": [math.nan, 1]})
    assert read_history(any_store, "r0001") == [
        {"round": 0, "gap": 0.5, "status": "ü"},
        {"round": 1, "gap": None, "more": [None, 1]},
    ]
    with HistoryWriter(any_store, "r0001") as writer:
        writer.append({"round": 2})
    assert [record["round"] for record in read_history(any_store, "r0001")] == [0, 1, 2]
    with pytest.raises(StorageError, match="closed"):
        writer.append({"round": 3})
    writer.close()


def test_history_is_seen_while_it_grows(local_store: Store, s3_store: Store) -> None:
    writer = HistoryWriter(local_store, "r0001", interval=1e9)
    writer.append({"round": 0})
    assert read_history(local_store, "r0001") == [{"round": 0}]
    remote = HistoryWriter(s3_store, "r0001", interval=1e9)
    remote.append({"round": 0})
    assert read_history(s3_store, "r0001") == [], "an object is rewritten now and then"
    remote.flush()
    assert read_history(s3_store, "r0001") == [{"round": 0}]
    hasty = HistoryWriter(s3_store, "r0002", interval=0.0)
    hasty.append({"round": 0})
    assert read_history(s3_store, "r0002") == [{"round": 0}]
    for one in (writer, remote, hasty):
        one.close()


@pytest.mark.parametrize(
    "torn", [b'{"round": 2', b'{"round"', b"\x00\x00\x00", b'{"round": 2}', b"\x00\x00\n"]
)
def test_a_torn_last_line_is_left_out_and_written_over(local_store: Store, torn: bytes) -> None:
    whole = b'{"round": 0}\n{"round": 1}\n'
    local_store.write_bytes(history_path("r0001"), whole + torn)
    assert [record["round"] for record in read_history(local_store, "r0001")] == [0, 1]
    with HistoryWriter(local_store, "r0001") as writer:
        writer.append({"round": 9})
    assert local_store.read_bytes(history_path("r0001")) == whole + b'{"round": 9}\n'


@pytest.mark.parametrize("bad", [b"nonsense", b"", b"[1]", b'{"a": 1', b"\xff"])
def test_any_other_bad_line_is_an_error(local_store: Store, bad: bytes) -> None:
    local_store.write_bytes(history_path("r0001"), b'{"round": 0}\n' + bad + b'\n{"round": 2}\n')
    with pytest.raises(IntegrityError, match=r"line 2 of .*history\.jsonl is damaged"):
        read_history(local_store, "r0001")


def test_a_killed_writer_leaves_whole_records(local_store: Store) -> None:
    code = (
        "import sys\n"
        "from topline.storage.runs.history import HistoryWriter\n"
        "from topline.storage.stores import open_store\n"
        "writer = HistoryWriter(open_store(sys.argv[1]), 'r0001')\n"
        "for n in range(10**9):\n"
        "    writer.append({'round': n, 'text': 'x' * 3000})\n"
        "    n == 50 and print('go', flush=True)\n"
    )
    root = Path(__file__).resolve().parents[3]
    child = subprocess.Popen([sys.executable, "-c", code, local_store.url], cwd=root, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    rounds = [record["round"] for record in read_history(local_store, "r0001")]
    assert rounds == list(range(len(rounds)))
    assert len(rounds) > 50


def test_a_checkpoint_comes_back(any_store: Store) -> None:
    assert latest_checkpoint(any_store, "r0001") is None
    save(any_store, 7, alpha=[1, 2])
    found = latest_checkpoint(any_store, "r0001", fingerprint=PRINT)
    assert found is not None
    assert (found.run_id, found.round, found.skipped) == ("r0001", 7, ())
    np.testing.assert_array_equal(found.arrays["W"], np.full((4, 3), 7.0))
    assert found.meta == {"fingerprint": PRINT, "dual": 0.5, "alpha": [1, 2]}
    np.testing.assert_array_equal(found.dual_blocks().rows(13, 33), A[13:33])
    np.testing.assert_array_equal(np.concatenate([rows for _, _, rows in found.dual_blocks()]), A)


def test_a_checkpoint_without_duals(local_store: Store) -> None:
    save_checkpoint(local_store, "r0001", 1, {"W": A}, None, {})
    found = latest_checkpoint(local_store, "r0001")
    assert found is not None
    assert not found.has_duals
    with pytest.raises(NotFoundError, match="without dual variables"):
        found.dual_blocks().rows(0, 1)


@bucket_when_slow
def test_the_last_two_are_kept(any_store: Store) -> None:
    for round_number in (1, 2, 3, 10, 100):
        save(any_store, round_number)
    assert checkpoint_rounds(any_store, "r0001") == [10, 100]
    folders = {path.split("/")[3] for path in any_store.walk("runs/r0001/checkpoints")}
    assert len(folders) == 2 * KEPT, "two records and their two folders"


def test_a_round_saved_again_is_replaced(local_store: Store) -> None:
    save(local_store, 5, dual=1)
    save(local_store, 5, dual=2)
    found = latest_checkpoint(local_store, "r0001")
    assert found is not None
    assert found.meta["dual"] == 2
    assert len(local_store.list("runs/r0001/checkpoints")) == 2


def test_a_writer_stopped_in_the_middle_changes_nothing(local_store: Store) -> None:
    save(local_store, 1)

    def stopped() -> Any:
        yield 0, 20, A[:20]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(local_store, "r0001", 2, {"W": A}, from_rows(stopped()), {})
    found = latest_checkpoint(local_store, "r0001")
    assert found is not None
    assert found.round == 1
    save(local_store, 3)
    assert len(local_store.list("runs/r0001/checkpoints")) == 4, "the leftover is swept by the next one"


@pytest.mark.parametrize(
    ("changes", "names"),
    [({"C": 2.0}, "its C changed"), ({"loss": {"k": 6}, "extra": 1}, "its extra, loss changed")],
)
def test_another_fingerprint_is_refused_by_name(
    local_store: Store, changes: dict[str, Any], names: str
) -> None:
    save(local_store, 1)
    with pytest.raises(MismatchError, match=names):
        latest_checkpoint(local_store, "r0001", fingerprint={**PRINT, **changes})


def test_a_checkpoint_that_says_nothing_of_its_run_is_refused(local_store: Store) -> None:
    save_checkpoint(local_store, "r0001", 1, {"W": A}, None, {})
    assert latest_checkpoint(local_store, "r0001") is not None
    with pytest.raises(MismatchError, match=f"its {', '.join(sorted(PRINT))} changed"):
        latest_checkpoint(local_store, "r0001", fingerprint=PRINT)


@pytest.mark.parametrize("victim", ["zarr.json", "W/c/0/0", "W/zarr.json", "duals/000000000000-000000000050"])
@pytest.mark.parametrize("loss", ["flipped", "missing", "empty"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(local_store: Store, victim: str, loss: str) -> None:
    save(local_store, 1)
    save(local_store, 2)
    (folder,) = (name for name in local_store.list("runs/r0001/checkpoints") if name.startswith("00000002-"))
    path = f"runs/r0001/checkpoints/{folder}/{victim}"
    if loss == "flipped":
        flip_first(local_store, path)
    elif loss == "missing":
        local_store.delete(path)
    else:
        local_store.write_bytes(path, b"")
    found = latest_checkpoint(local_store, "r0001")
    assert found is not None
    assert found.round == 1
    assert len(found.skipped) == 1
    assert "checkpoint 2 of run r0001" in found.skipped[0]


def test_only_damaged_checkpoints_are_an_error(local_store: Store) -> None:
    save(local_store, 1)
    flip_first(local_store, "runs/r0001/checkpoints/00000001.json")
    with pytest.raises(IntegrityError, match="no checkpoint of run r0001 is whole"):
        latest_checkpoint(local_store, "r0001")


def test_duals_that_flip_after_the_check_are_noticed_when_they_are_read(local_store: Store) -> None:
    save(local_store, 1)
    found = latest_checkpoint(local_store, "r0001")
    assert found is not None
    (folder,) = (name for name in local_store.list("runs/r0001/checkpoints") if name.startswith("00000001-"))
    flip_first(local_store, f"runs/r0001/checkpoints/{folder}/duals/000000000000-000000000050")
    with pytest.raises(IntegrityError, match=r"duals of checkpoint 1 of run r0001: .* is damaged"):
        list(found.dual_blocks())


def test_meta_that_is_not_json(local_store: Store) -> None:
    with pytest.raises(FormatError):
        save_checkpoint(local_store, "r0001", 1, {"W": A}, None, {"x": object()})
    assert latest_checkpoint(local_store, "r0001") is None
