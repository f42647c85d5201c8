"""Runs, their histories, checkpoints and locks."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.storage.clocks import FakeClock
from tests.storage.samples import bucket_when_slow
from tests.storage.test_integrity import flip_first
from topline.solvers.core.state import IterationRecord, Objective
from topline.storage.arrays import from_rows
from topline.storage.errors import FormatError, IntegrityError, MismatchError, NotFoundError, StorageError
from topline.storage.runs import (
    HistoryReader,
    HistoryWriter,
    create_run,
    finish_run,
    latest_checkpoint,
    list_runs,
    read_history,
    read_run,
    run_lock,
    save_checkpoint,
)
from topline.storage.runs import history as history_module
from topline.storage.runs.checkpoints import KEPT, checkpoint_rounds
from topline.storage.runs.history import history_path
from topline.storage.schema import HISTORY_ENCODING, encoding
from topline.storage.stores import LeaseHeldError, LeaseLostError, LeaseTerms, Store
from topline.storage.verification import verify_store

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
    with closing(HistoryWriter(any_store, "r0001")) as writer:
        writer.append({"round": 0, "gap": np.float32(0.5), "status": "ü"})
        writer.append({"round": np.int64(1), "gap": math.inf, "more": [math.nan, 1]})
    assert read_history(any_store, "r0001") == [
        {"round": 0, "gap": 0.5, "status": "ü"},
        {"round": 1, "gap": None, "more": [None, 1]},
    ]
    with closing(HistoryWriter(any_store, "r0001")) as writer:
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
    with closing(HistoryWriter(local_store, "r0001")) as writer:
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
    assert (found.run_id, found.round, found.skipped) == ("r0001", 7, ())
    np.testing.assert_array_equal(found.arrays["W"], np.full((4, 3), 7.0))
    assert found.meta == {"fingerprint": PRINT, "dual": 0.5, "alpha": [1, 2]}
    np.testing.assert_array_equal(found.dual_blocks().rows(13, 33), A[13:33])
    np.testing.assert_array_equal(np.concatenate([rows for _, _, rows in found.dual_blocks()]), A)


def test_a_checkpoint_without_duals(local_store: Store) -> None:
    save_checkpoint(local_store, "r0001", 1, {"W": A}, None, {})
    found = latest_checkpoint(local_store, "r0001")
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
    (folder,) = (name for name in local_store.list("runs/r0001/checkpoints") if name.startswith("00000001-"))
    flip_first(local_store, f"runs/r0001/checkpoints/{folder}/duals/000000000000-000000000050")
    with pytest.raises(IntegrityError, match=r"duals of checkpoint 1 of run r0001: .* is damaged"):
        list(found.dual_blocks())


def test_meta_that_is_not_json(local_store: Store) -> None:
    with pytest.raises(FormatError):
        save_checkpoint(local_store, "r0001", 1, {"W": A}, None, {"x": object()})
    assert latest_checkpoint(local_store, "r0001") is None


ROOT = Path(__file__).resolve().parents[3]
SILENT = LeaseTerms(beat=3600.0, expiry=3600.0)
HOLDER = """
import sys, time
from topline.storage.stores import LeaseTerms
from topline.storage.runs.records import run_lock
from topline.storage.stores import open_store
with run_lock(open_store(sys.argv[1]), sys.argv[2], terms=LeaseTerms(beat=3600.0, expiry=3600.0)):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_run_has_one_holder_at_a_time(any_store: Store) -> None:
    run = create_run(any_store, {})
    other = create_run(any_store, {})
    with run_lock(any_store, run) as lock:
        by = rf"by process {os.getpid()} on \S+ since \S+?(, renewed \d+ s ago)?"
        held = rf"run {run} is already being trained {by}: wait for it"
        with pytest.raises(LeaseHeldError, match=held), run_lock(any_store, run):
            pass
        with run_lock(any_store, other):
            lock.check()
    with run_lock(any_store, run):
        pass
    assert verify_store(any_store) == []


@pytest.fixture
def killed(any_shared_store: Store) -> Iterator[tuple[Store, str]]:
    """A run whose holder, another process, is there no more; before that nobody else got it."""
    store = any_shared_store
    run = create_run(store, {})
    words = [sys.executable, "-c", HOLDER, store.url, run]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        who = re.escape(f"process {holder.pid} ")
        with pytest.raises(LeaseHeldError, match=who), run_lock(store, run, terms=SILENT):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        yield store, run


@pytest.fixture(params=["local", "s3"])
def any_shared_store(request: pytest.FixtureRequest) -> Store:
    store: Store = request.getfixturevalue(f"{request.param}_store")
    return store


def test_a_killed_holder_holds_nothing_for_long(killed: tuple[Store, str]) -> None:
    """Not at all where the kernel has the lock, and elsewhere until its lease is over."""
    clock = FakeClock()
    clock.sleep(120.0)
    with run_lock(*killed, terms=LeaseTerms(clock=clock.clock)) as lock:
        lock.check()
        assert (clock.now > 120.0) == (not killed[0].locks)


def test_who_was_not_heard_of_is_told_that_the_run_is_another_s(memory_store: Store) -> None:
    run = create_run(memory_store, {})
    clock = FakeClock()
    silent, usual = LeaseTerms(3600.0, clock=clock.clock), LeaseTerms(clock=clock.clock)
    with run_lock(memory_store, run, terms=silent) as first:
        first.check()
        killed = pytest.raises(LeaseHeldError, match="if it was killed, its lock ends within 120 s")
        with killed, run_lock(memory_store, run, terms=usual):
            pass
        clock.sleep(60.0)
        second = run_lock(memory_store, run, terms=usual)
        with second, pytest.raises(LeaseLostError, match=f"taken over by another training of {run} "):
            first.check()


def rounds(reader: HistoryReader) -> list[int]:
    return [record["round"] for record in reader.read_new()]


def test_a_reader_gives_every_record_once(any_store: Store) -> None:
    reader = HistoryReader(any_store, "r0001")
    assert rounds(reader) == []
    with closing(HistoryWriter(any_store, "r0001")) as writer:
        for number in range(3):
            writer.append({"round": number})
        writer.flush()
        assert rounds(reader) == [0, 1, 2]
        assert rounds(reader) == []
        writer.append({"round": 3})
    with closing(HistoryWriter(any_store, "r0001")) as writer:
        writer.append({"round": 4})
    assert rounds(reader) == [3, 4]
    # One that stops in the middle goes on from there.
    again = HistoryReader(any_store, "r0001")
    assert next(again.read_new())["round"] == 0
    assert rounds(again) == [1, 2, 3, 4]


def test_a_line_is_read_when_it_is_whole(local_store: Store) -> None:
    place = local_store.local_path / history_path("r0001")
    place.parent.mkdir(parents=True)
    place.write_bytes(b'{"round": 0}\n{"rou')
    reader = HistoryReader(local_store, "r0001")
    assert rounds(reader) == [0]
    place.write_bytes(b'{"round": 0}\n{"round": 1}\n\x00\x00\n')
    assert rounds(reader) == [1]
    # The process that goes on with the run cuts off what the crash had left.
    with closing(HistoryWriter(local_store, "r0001")) as writer:
        writer.append({"round": 2})
    assert rounds(reader) == [2]
    place.write_bytes(place.read_bytes() + b'nonsense\n{"round": 3}\n')
    with pytest.raises(IntegrityError, match=r"line 4 of .* is damaged"):
        rounds(reader)
    place.write_bytes(b'{"round": 0}\n')
    with pytest.raises(IntegrityError, match="shorter than it was"):
        rounds(reader)


def test_lines_longer_than_what_is_read_at_once(local_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "_CHUNK", 64)
    with closing(HistoryWriter(local_store, "r0001")) as writer:
        for number in range(5):
            writer.append({"round": number, "text": "x" * 50 * number})
    place = local_store.local_path / history_path("r0001")
    with place.open("ab") as file:
        file.write(b'{"torn": "' + b"x" * 200)
    assert [record["round"] for record in read_history(local_store, "r0001")] == [0, 1, 2, 3, 4]
    with closing(HistoryWriter(local_store, "r0001")) as writer:
        writer.append({"round": 5})
    assert [record["round"] for record in read_history(local_store, "r0001")] == [0, 1, 2, 3, 4, 5]


BEHIND = {
    "a record of nobody's": b'{"round": 7}\n',
    "text without an end": b"x" * (17 << 20),
    "brackets": b"[" * 100_000 + b"\n{}\n",
}


@pytest.mark.parametrize("added", BEHIND.values(), ids=BEHIND)
def test_what_is_put_behind_the_end_of_a_run_is_noticed(local_store: Store, added: bytes) -> None:
    run = create_run(local_store, {})
    with closing(HistoryWriter(local_store, run)) as writer:
        writer.append({"event": "begin", **encoding(HISTORY_ENCODING)}, {"round": 0}, {"event": "end"})
    finish_run(local_store, run, {"status": "solved"})
    assert verify_store(local_store) == []
    with (local_store.local_path / history_path(run)).open("ab") as file:
        file.write(added)
    assert [finding.path for finding in verify_store(local_store)] == [history_path(run)]


def test_a_run_that_is_resumed_goes_on_behind_its_end(local_store: Store) -> None:
    run = create_run(local_store, {})
    for number in range(2):
        with closing(HistoryWriter(local_store, run)) as writer:
            writer.append({"event": "begin", **encoding(HISTORY_ENCODING)}, {"round": number})
        assert [found for found in verify_store(local_store) if not found.harmless] == []
        finish_run(local_store, run, {"status": "max_passes"})


def test_an_object_is_never_rewritten_beyond_a_part(
    memory_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "_PART_BYTES", 200)
    reader = HistoryReader(memory_store, "r0001")
    read = []
    for number in range(0, 100, 10):
        with closing(HistoryWriter(memory_store, "r0001", interval=1e9)) as writer:
            for more in range(10):
                writer.append({"round": number + more})
        read += rounds(reader)
    assert read == list(range(100))
    assert rounds(HistoryReader(memory_store, "r0001")) == read
    parts = memory_store.list("runs/r0001")
    assert parts[:2] == ["history.00001.jsonl", "history.00002.jsonl"]
    assert len(parts) == 8
    assert all(memory_store.size(f"runs/r0001/{name}") <= 200 for name in parts)


def test_a_history_of_a_later_version_is_refused(local_store: Store) -> None:
    with closing(HistoryWriter(local_store, "r0001")) as writer:
        writer.append({"event": "begin", **encoding(HISTORY_ENCODING)})
        writer.append({"event": "begin", **encoding(HISTORY_ENCODING), "encoding-version": "9"})
    reader = HistoryReader(local_store, "r0001")
    with pytest.raises(FormatError, match=r"history\.jsonl has format version 9; .* upgrade it"):
        list(reader.read_new())


def test_every_field_of_a_round_is_described() -> None:
    record = IterationRecord(0, 1, 0.0, Objective(1.0, 0.0), 1.0, 1.0)
    guide = (ROOT / "storage" / "README.md").read_text(encoding="utf-8")
    table = guide.split("### History")[1].split("```text\n")[1].split("```")[0]
    described = set(re.findall(r"[a-z_]+", "\n".join(line[:22] for line in table.splitlines())))
    looked_at = {"held_out", "held_out_rows", "held_out_split"}
    assert described == {*json.loads(json.dumps(record.to_dict())), "at", *looked_at}
