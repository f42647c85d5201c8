"""The commit log under racing writers: distinct numbers, no gap, none lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.processes import run_program
from tests.small_disk import small_disk
from tests.storage.samples import CLASSES, assignments, begin, dense, write_dataset, write_units
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import Dataset, check_dataset, list_datasets
from topline.storage.datasets.contents import write_mark
from topline.storage.errors import ConflictError, DiskFullError, IntegrityError, NotFoundError
from topline.storage.stores import CommitLog, Store, open_store
from topline.storage.stores.local import PARTIAL
from topline.storage.stores.sealed import STORE_KEY, sealed, unsealed
from topline.storage.verification import verify_store


def test_records_are_numbered(any_store: Store) -> None:
    log = CommitLog(any_store, "things")
    with pytest.raises(NotFoundError, match="no things yet"):
        log.latest()
    assert [log.append({"n": n}) for n in range(3)] == [1, 2, 3]
    assert log.numbers() == [1, 2, 3]
    assert [record["n"] for record in log.records()] == [0, 1, 2]
    assert log.latest()["n"] == 2
    assert list(CommitLog(any_store, "others").records()) == []


def test_what_is_unique_is_there_once(any_store: Store) -> None:
    log = CommitLog(any_store, "things")
    assert log.append({"key": "a"}, unique="key") == 1
    assert log.append({"key": "b"}, unique="key") == 2
    assert log.append({"key": "a", "more": 1}, unique="key") == 1
    assert len(list(log.records())) == 2


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("ask", [CommitLog.numbers, lambda log: log.append({})], ids=["read", "append"])
def test_a_missing_record_is_noticed(
    local_store: Store, number: int, ask: Callable[[CommitLog], object]
) -> None:
    log = CommitLog(local_store, "things")
    for n in range(3):
        log.append({"n": n})
    local_store.delete(f"commits/things/{number:08}.json")
    with pytest.raises(IntegrityError, match=rf"{number:08}\.json is missing"):
        ask(log)


def test_a_record_in_the_place_of_another_is_noticed(local_store: Store) -> None:
    log = CommitLog(local_store, "things")
    for n in range(2):
        log.append({"n": n})
    local_store.write_bytes(
        "commits/things/00000002.json", local_store.read_bytes("commits/things/00000001.json")
    )
    with pytest.raises(IntegrityError, match=r"is a record of commits/things/00000001\.json, not its own"):
        log.latest()


def test_records_are_bound_to_those_before_them(local_store: Store) -> None:
    log = CommitLog(local_store, "things")
    for n in range(3):
        log.append({"n": n})
    assert list(log.findings("log")) == []
    path = "commits/things/00000002.json"
    record = unsealed(local_store, path)
    local_store.write_bytes(path, sealed(path, {**record, "n": 7}))
    with pytest.raises(IntegrityError, match=r"00000003\.json does not follow the record before it"):
        list(log.records())
    assert {finding.path.rpartition("/")[2] for finding in log.findings("log")} == {
        "00000002.head",
        "00000003.json",
    }
    local_store.write_bytes(path, sealed(path, {**record, "previous": "0" * 64}))
    with pytest.raises(IntegrityError, match=r"00000002\.json does not follow"):
        list(log.records())


def test_an_empty_log_is_in_order_and_not_begun(any_store: Store) -> None:
    log = CommitLog(any_store, "things")
    assert log.begun is False
    assert list(log.findings("log")) == []
    log.append({"n": 0})
    assert log.begun is True


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_one_lost_record_is_one_finding(local_store: Store, how: str) -> None:
    """What follows it cannot be held against it, and is sound as far as anybody can tell."""
    log = CommitLog(local_store, "things")
    for n in range(4):
        log.append({"n": n})
    path = "commits/things/00000002.json"
    if how == "missing":
        local_store.delete(path)
    else:
        local_store.write_bytes(path, local_store.read_bytes(path)[:-5])
    assert [finding.path for finding in log.findings("log")] == [path]


def test_a_first_record_that_follows_another_is_noticed(local_store: Store) -> None:
    log = CommitLog(local_store, "things")
    log.append({"n": 0})
    path = "commits/things/00000001.json"
    record = {**unsealed(local_store, path), "previous": "0" * 64}
    local_store.write_bytes(path, sealed(path, record))
    local_store.delete("commits/things/00000001.head")
    first = next(iter(log.findings("log")))
    assert (first.path, first.what) == (path, "it does not follow the record before it")


def test_the_head_of_an_old_record_is_held_against_it(local_store: Store) -> None:
    """Records of version 0.1.0 name none before them; the head comes with the next writer."""
    log = CommitLog(local_store, "things")
    path = "commits/things/00000001.json"
    local_store.write_bytes(path, sealed(path, {"n": 0, "seq": 1, "token": "a"}))
    assert list(log.findings("log")) == []
    log.append({"n": 1})
    assert list(log.findings("log")) == []
    local_store.write_bytes(path, sealed(path, {"n": 7, "seq": 1, "token": "a"}))
    assert "commits/things/00000001.head" in {finding.path for finding in log.findings("log")}


def test_a_lost_tail_is_noticed(any_store: Store) -> None:
    log = CommitLog(any_store, "things")
    for n in range(2):
        log.append({"n": n})
    any_store.delete("commits/things/00000002.json")
    for use in (log.latest, log.numbers, lambda: log.append({"n": 2})):
        with pytest.raises(IntegrityError, match=r"00000002\.json is missing"):
            use()
    (finding,) = log.findings("log")
    assert (finding.path, finding.what) == (
        "commits/things/00000002.json",
        "it is missing from the commit log",
    )


def test_the_next_writer_puts_the_head_of_one_who_was_killed(local_store: Store) -> None:
    log = CommitLog(local_store, "things")
    log.append({"n": 0})
    local_store.delete("commits/things/00000001.head")
    assert [finding.harmless for finding in log.findings("log")] == [True]
    log.append({"n": 1})
    assert list(log.findings("log")) == []


def test_heads_of_others_are_noticed(local_store: Store) -> None:
    log = CommitLog(local_store, "things")
    for n in range(2):
        log.append({"n": n})
    path = "commits/things/00000001.head"
    whole = local_store.read_bytes(path)
    for other in (
        local_store.read_bytes("commits/things/00000002.head"),
        sealed(path, {"digest": "0"}),
        b"{}",
    ):
        local_store.write_bytes(path, other)
        assert [finding.path for finding in log.findings("log")] == [path]
    local_store.write_bytes(path, whole)
    assert list(log.findings("log")) == []


def test_signed_records_are_read_with_their_key_alone(
    local_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CommitLog(local_store, "things")
    log.append({"n": 0})
    monkeypatch.setenv(STORE_KEY, "a secret")
    with pytest.raises(IntegrityError, match="is not signed with the key in TOPLINE_STORE_KEY"):
        log.latest()
    signed = CommitLog(local_store, "signed")
    signed.append({"n": 1})
    assert signed.latest()["n"] == 1
    monkeypatch.setenv(STORE_KEY, "another")
    with pytest.raises(IntegrityError, match="is not signed with the key"):
        signed.latest()
    monkeypatch.delenv(STORE_KEY)
    assert signed.latest()["n"] == 1
    assert set(signed.latest()) == {"n", "seq", "token", "previous"}


def test_a_slower_writer_of_other_numbers_leaves_whole_units(memory_store: Store) -> None:
    X, other = dense(60, 4), dense(60, 4, seed=1)
    slow, fast = (begin(memory_store, X, ChunkPlan(60, 8, 32)) for _ in range(2))
    write_units(fast, X)
    write_units(slow, other, [0])
    assert fast.done_units() == {0, 1}
    write_dataset(memory_store, X, ChunkPlan(60, 8, 32))
    found = Dataset.open(memory_store)
    assert check_dataset(found, deep=True) == []
    np.testing.assert_array_equal(found.rows(0, 60), np.concatenate([X[:32], X[32:]]))


def test_a_unit_marked_during_a_commit_leaves_no_mark(memory_store: Store) -> None:
    X = dense(60, 4)
    slow = begin(memory_store, X, ChunkPlan(60, 8, 32))
    info = write_dataset(memory_store, X, ChunkPlan(60, 8, 32))
    found = Dataset.open(memory_store)
    write_mark(memory_store, slow.folder, 0, found.units[0])
    assert check_dataset(found, deep=False) != []
    assert slow.commit(*assignments(60), CLASSES) == info
    assert check_dataset(found, deep=True) == []


@pytest.mark.parametrize("how", ["append", "revise"])
def test_who_always_loses_is_told_so(memory_store: Store, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    log = CommitLog(memory_store, "things")
    log.append({"key": "start"})
    monkeypatch.setattr("topline.storage.stores.commit_log._TRIES", 4)
    monkeypatch.setattr(CommitLog, "append_as", lambda *_: False)
    with pytest.raises(ConflictError, match="commits/things takes no new record"):
        getattr(log, how)({"key": "me"} if how == "append" else lambda latest, _: latest)


ROOT = Path(__file__).resolve().parents[3]


_ONE_SENTENCE = """
import sys
import numpy as np
from topline.storage.arrays.shards import ChunkPlan
from topline.storage.errors import StorageError
from topline.storage.stores import open_store
from tests.storage.samples import write_dataset
exec(sys.argv[2])
X = np.random.default_rng(0).standard_normal((4096, 512)).astype(np.float32)
try:
    write_dataset(open_store(sys.argv[1]), X, ChunkPlan(4096, 128, 512), key="too large")
except StorageError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def run_python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    return run_program([sys.executable, "-X", "dev", "-c", code, *args], cwd=ROOT)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", megabytes=4) as folder:
        yield folder


def test_a_full_disk_is_one_sentence_and_nothing_is_torn(disk: Path) -> None:
    store = open_store(disk / "store", create=True)
    X = dense(101, 6)
    before = write_dataset(store, X, ChunkPlan(101, 8, 32))
    outcome = run_python(_ONE_SENTENCE, store.url, "")
    assert outcome.returncode == 1
    assert outcome.stdout == ""
    lines = outcome.stderr.splitlines()
    assert len(lines) == 1, outcome.stderr
    assert lines[0].startswith("DiskFullError: no space is left to write ")
    assert "free some space" in lines[0]
    assert list_datasets(store) == [before]
    assert not any(path.endswith(PARTIAL) for path in store.walk())
    assert check_dataset(Dataset.open(store), deep=True) == []
    np.testing.assert_array_equal(Dataset.open(store).rows(0, 101), X)
    assert {finding.kind for finding in verify_store(store)} == {"staging"}


@pytest.mark.slow
def test_a_limit_on_file_sizes_is_a_full_disk(local_store: Store) -> None:
    before = write_dataset(local_store, dense(101, 6), ChunkPlan(101, 8, 32))
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))"
    outcome = run_python(_ONE_SENTENCE, local_store.url, limit)
    assert outcome.returncode == 1
    assert len(outcome.stderr.splitlines()) == 1, outcome.stderr
    assert outcome.stderr.startswith("DiskFullError: no space is left to write ")
    assert list_datasets(local_store) == [before]
    assert not any(path.endswith(PARTIAL) for path in local_store.walk())


def test_a_full_disk_in_the_history_leaves_whole_lines(disk: Path) -> None:
    from topline.storage.runs import HistoryWriter, read_history

    store = open_store(disk / "store", create=True)
    writer = HistoryWriter(store, "r0001")
    record = {"text": "x" * 100_000}
    written: list[int] = []

    def append_until_full() -> None:
        for number in range(100):
            writer.append(record)
            written.append(number)

    with pytest.raises(DiskFullError, match=r"history\.jsonl"):
        append_until_full()
    assert 0 < len(written) < 100
    assert read_history(store, "r0001") == [record] * len(written)
    writer.close()


def test_a_model_or_checkpoint_that_finds_no_room_leaves_none(disk: Path) -> None:
    from tests.storage.models.test_records import record
    from topline.storage.models import list_models, save_model
    from topline.storage.runs import latest_checkpoint, save_checkpoint

    store = open_store(disk / "store", create=True)
    small, large = np.ones(10), np.random.default_rng(0).standard_normal(10**6)
    save_checkpoint(store, "r0001", 1, {"W": small}, None, {})
    with pytest.raises(DiskFullError):
        save_checkpoint(store, "r0001", 2, {"W": large}, None, {})
    with pytest.raises(DiskFullError):
        save_model(store, record(), {"W": large})
    kept = latest_checkpoint(store, "r0001")
    assert kept.round == 1
    assert list_models(store) == []
    assert (store.free_bytes() or 0) > 3_000_000, "what did not fit was removed again"
