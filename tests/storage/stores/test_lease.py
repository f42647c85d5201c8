"""One holder a lease, on any kind of store, and none that is dead or hangs keeps it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from topline.storage.errors import AccessError, DiskFullError
from topline.storage.stores import (
    Clock,
    LeaseHeldError,
    LeaseLostError,
    LeaseTerms,
    Store,
    held_lease,
    holder,
    tenant,
)
from topline.storage.stores.lease import alone_with, hold_while

ROOT = Path(__file__).resolve().parents[3]
PATIENT = LeaseTerms(beat=0.1, expiry=600.0)
HOLDER = """
import sys, time
from topline.storage.stores.lease import held_lease
from topline.storage.stores import open_store
with held_lease(open_store(sys.argv[1]), "retrain", "a child"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_terms_are_those_of_the_specification() -> None:
    text = " ".join((ROOT / "storage" / "README.md").read_text(encoding="utf-8").split())
    terms = LeaseTerms()
    assert f"renewed every {terms.beat:g} s while the holder lives" in text
    assert f"watched {terms.expiry:g} s go by without another beat" in text


def test_the_second_is_refused_and_told_who_holds_it(any_store: Store) -> None:
    told = r"r0001 \(process \d+ on \S+ since \S+, renewed \d+ s ago\) holds .* for retrain: wait for it"
    with held_lease(any_store, "retrain", "r0001"):
        with pytest.raises(LeaseHeldError, match=told), held_lease(any_store, "retrain", "r0002"):
            pass
        with held_lease(any_store, "sweep", "r0002"):
            pass
    with held_lease(any_store, "retrain", "r0003"):
        pass


def test_a_killed_holder_frees_a_local_store_at_once(local_store: Store) -> None:
    words = [sys.executable, "-c", HOLDER, local_store.url]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "held\n"
        with pytest.raises(LeaseHeldError, match="a child"), held_lease(local_store, "retrain", "me"):
            pass
        assert "a child" in str(holder(local_store, "retrain"))
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert holder(local_store, "retrain") is None, "pages do not show it at work for ever"
        with held_lease(local_store, "retrain", "me") as lease:
            assert lease.number == 2


def test_a_place_that_cannot_be_written_is_said(local_store: Store) -> None:
    """Whoever runs the tests may write anywhere: here a file lies where the folder would be made."""
    local_store.write_bytes("leases", b"")
    with pytest.raises(AccessError, match=r"leases/retrain/00000001\.lock cannot be used: "):
        held_lease(local_store, "retrain", "a test").__enter__()


@pytest.mark.parametrize("error", [AccessError, DiskFullError])
def test_work_that_is_done_is_not_lost_with_the_word_that_it_is(
    local_store: Store,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: type[OSError],
) -> None:
    put = Store.put_if_absent

    def refused(self: Store, path: str, data: bytes) -> bool:
        if path.endswith(".done"):
            raise error("no room")
        return put(self, path, data)

    monkeypatch.setattr(Store, "put_if_absent", refused)
    with held_lease(local_store, "retrain", "a test"):
        pass
    assert "the lease retrain is not given back: no room" in caplog.text


BEAT = "leases/retrain/00000001.beat"


class Sleeper:
    """A clock that goes on only while somebody sleeps; the thread of a holder waits as ever."""

    def __init__(self) -> None:
        self.seconds, self.slept = 5e8, 0
        self.each_time: Any = lambda: None
        clock = Clock(monotonic=lambda: self.seconds, wall=self.wall, sleep=self.sleep)
        self.terms = LeaseTerms(beat=10.0, expiry=60.0, clock=clock)
        #: The one that holds the lease does not beat within a test.
        self.silent = replace(self.terms, beat=3600.0)

    def wall(self) -> float:
        return self.seconds + 1e9

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.slept += 1
        self.each_time()


@pytest.fixture
def clock() -> Sleeper:
    return Sleeper()


def beat(store: Store, clock: Sleeper, age: float, count: int = 7) -> None:
    data = json.dumps({"count": count, "at": clock.wall() - age}).encode()
    store.write_bytes(BEAT, data)


@pytest.mark.parametrize("age", [60.0, 86400.0, -86400.0, None])
def test_whose_beat_is_not_of_now_loses_it_after_as_long_as_a_lease_lasts(
    memory_store: Store, clock: Sleeper, age: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    with held_lease(memory_store, "retrain", "the first", terms=clock.silent) as lease:
        if age is None:
            memory_store.write_bytes(BEAT, b"torn")
        else:
            beat(memory_store, clock, age)
        with held_lease(memory_store, "retrain", "me", terms=clock.terms) as mine:
            assert (lease.number, mine.number) == (1, 2)
        assert clock.slept == 60
        told = [record.getMessage() for record in caplog.records]
        assert len(told) == 1
        assert "the first" in told[0]
        assert "up to 60 s" in told[0]


@pytest.mark.parametrize(
    ("age", "renewed", "beat_seconds", "wait", "slept"),
    [
        pytest.param(0.0, (), 10.0, 0.0, 0, id="who was heard of now keeps it, and nobody waits"),
        pytest.param(59.0, (), 10.0, 0.0, 0, id="who was heard of a minute ago keeps it as well"),
        pytest.param(-1.0, (), 10.0, 0.0, 1, id="a clock that is a second ahead costs a second"),
        pytest.param(86400.0, (10,), 10.0, 0.0, 10, id="whose clock is wrong keeps it when a beat comes"),
        pytest.param(0.0, range(99), 10.0, 5.0, 5, id="who waits gives up when the time is over"),
        pytest.param(0.0, range(99), 2.0, 5.0, 10, id="it looks again after a quarter of a beat at most"),
    ],
)
def test_how_long_a_candidate_looks(
    memory_store: Store,
    clock: Sleeper,
    age: float,
    renewed: Sequence[int],
    beat_seconds: float,
    wait: float,
    slept: int,
) -> None:
    with held_lease(memory_store, "retrain", "the first", terms=clock.silent):
        beat(memory_store, clock, age)
        began = clock.seconds

        def goes_on() -> None:
            if clock.slept in renewed:
                beat(memory_store, clock, age, count=7 + clock.slept)

        clock.each_time = goes_on
        terms = replace(clock.terms, beat=beat_seconds)
        with pytest.raises(LeaseHeldError), held_lease(memory_store, "retrain", "me", wait=wait, terms=terms):
            pass
        assert (clock.slept, clock.seconds - began) == (slept, wait or slept)


@pytest.mark.parametrize(
    ("age", "said"),
    [
        (0.0, "renewed 0 s ago"),
        (30.0, "renewed 30 s ago"),
        (31.0, "not heard of since 2017-07-14T02:39:29+00:00"),
        (-5.0, "renewed 0 s ago"),
    ],
)
def test_a_holder_is_shown_with_its_last_renewal(
    memory_store: Store, clock: Sleeper, age: float, said: str
) -> None:
    with held_lease(memory_store, "retrain", "the first", terms=clock.silent):
        beat(memory_store, clock, age)
        assert (holder(memory_store, "retrain", clock.terms.clock) or "").endswith(f", {said})")


def test_a_holder_that_was_killed_before_its_first_renewal_counts_from_its_beginning(
    memory_store: Store, clock: Sleeper
) -> None:
    with held_lease(memory_store, "retrain", "the first", terms=clock.silent):
        memory_store.delete(BEAT)
        who = tenant(memory_store, "retrain")
        assert datetime.fromtimestamp(who.renewed, UTC).isoformat() == who.since


def test_earlier_tenures_are_dropped_and_their_numbers_stay_taken(
    memory_store: Store, clock: Sleeper
) -> None:
    for number in (1, 2, 3):
        with held_lease(memory_store, "retrain", "me", terms=clock.silent) as lease:
            assert lease.number == number
            assert (holder(memory_store, "retrain") or "").startswith("me (process ")
        assert holder(memory_store, "retrain") is None
    left = ["00000001.json", "00000002.json", "00000003.json"]
    assert memory_store.list("leases/retrain") == sorted([*left, "00000003.beat", "00000003.done"])


def test_a_holder_beats_with_a_new_count_each_time(memory_store: Store) -> None:
    seen: list[Any] = []
    enough = threading.Event()
    genuine = memory_store.write_bytes

    class Watching:
        def __getattr__(self, name: str) -> Any:
            return getattr(memory_store, name)

        def write_bytes(self, path: str, data: bytes) -> None:
            genuine(path, data)
            seen.append(json.loads(data)["count"])
            if len(seen) == 4:
                enough.set()

    watching: Any = Watching()
    with held_lease(watching, "retrain", "me", terms=LeaseTerms(beat=0.01, expiry=60.0)):
        assert enough.wait(120.0)
    assert seen[:4] == [0, 1, 2, 3]


def test_a_local_tenure_without_its_lock_file_is_judged_by_its_beat(
    local_store: Store, clock: Sleeper
) -> None:
    with held_lease(local_store, "retrain", "the first", terms=clock.silent):
        local_store.delete("leases/retrain/00000001.lock")
        beat(local_store, clock, 0.0)
        with pytest.raises(LeaseHeldError), held_lease(local_store, "retrain", "me", terms=clock.terms):
            pass


def test_a_lease_that_was_lost_stays_lost(memory_store: Store, clock: Sleeper) -> None:
    with held_lease(memory_store, "retrain", "the first", terms=clock.silent) as lease:
        beat(memory_store, clock, 60.0)
        with held_lease(memory_store, "retrain", "me", terms=clock.terms):
            with pytest.raises(LeaseLostError, match="was taken over by me"):
                lease.check()
            memory_store.delete("leases/retrain/00000002.json")
            with pytest.raises(LeaseLostError, match="was taken over by"):
                lease.check()


def test_who_looks_whether_a_holder_lives_leaves_no_file_open(local_store: Store, clock: Sleeper) -> None:
    def open_files() -> list[str]:
        return [file.path for file in psutil.Process().open_files() if "/leases/" in file.path]

    with held_lease(local_store, "retrain", "one that dies", terms=clock.silent):
        pass
    local_store.delete("leases/retrain/00000001.done")
    with held_lease(local_store, "retrain", "me", terms=clock.terms) as lease:
        assert lease.number == 2
        assert len(open_files()) == 1, "the lock of the lease itself"
    assert clock.slept == 0, "its lock is free, so nobody waits for its beat"
    assert open_files() == []


def test_who_has_lost_the_lease_beats_no_more(memory_store: Store) -> None:
    before = set(threading.enumerate())
    with held_lease(memory_store, "retrain", "me", terms=LeaseTerms(beat=0.01)) as lease:
        (keeper,) = set(threading.enumerate()) - before
        signature = memory_store.read_bytes("leases/retrain/00000001.json")
        memory_store.write_bytes("leases/retrain/00000002.json", signature)
        keeper.join(120.0)
        assert not keeper.is_alive()
        with pytest.raises(LeaseLostError):
            lease.check()


def test_who_cannot_beat_says_so_and_tries_again(
    memory_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    failed, again = threading.Event(), threading.Event()

    class Failing:
        def __getattr__(self, name: str) -> Any:
            return getattr(memory_store, name)

        def write_bytes(self, path: str, data: bytes) -> None:
            count = json.loads(data)["count"]
            if count == 1:
                failed.set()
                raise AccessError("the bucket is away")
            memory_store.write_bytes(path, data)
            if count == 2:
                again.set()

    failing: Any = Failing()
    with held_lease(failing, "retrain", "me", terms=LeaseTerms(beat=0.01)):
        assert failed.wait(120.0)
        assert again.wait(120.0)
    assert "is not renewed: the bucket is away" in caplog.text


def test_files_of_others_in_the_folder_are_left_alone(memory_store: Store, clock: Sleeper) -> None:
    memory_store.write_bytes("leases/retrain/notes.done", b"")
    for _ in range(2):
        with held_lease(memory_store, "retrain", "me", terms=clock.silent):
            pass
    assert memory_store.exists("leases/retrain/notes.done")


@pytest.mark.parametrize("ends", [True, False], ids=["it ends", "it goes on"])
def test_what_is_being_removed_is_waited_for_with_a_word_and_an_end(
    local_store: Store, clock: Sleeper, caplog: pytest.LogCaptureFixture, ends: bool
) -> None:
    """Whoever opens a dataset, a model or a staging while pruning has it; a second lock of one process."""
    local_store.write_bytes("files.json", b"[]")
    held, place, begun = ExitStack(), f"{local_store.url}/files.json", clock.seconds
    assert held.enter_context(alone_with(local_store, "files.json"))
    clock.each_time = lambda: held.close() if ends and clock.seconds > begun + 30.0 else None
    removing = f"another process is removing {place} and what it lists"
    owner = threading.Event()
    if ends:
        hold_while(owner, local_store, "files.json", clock.terms.clock)
        with alone_with(local_store, "files.json") as alone:
            assert not alone
        assert clock.seconds < begun + 31.0
    else:
        said = f"^{removing}, and did not end within 120 s: end it, or run this again later$"
        with held, pytest.raises(LeaseHeldError, match=said):
            hold_while(owner, local_store, "files.json", clock.terms.clock)
        assert 120.0 <= clock.seconds - begun < 121.0
    assert caplog.messages == [f"{removing}: waiting up to 120 s"]


def test_who_waits_for_a_lease_is_told_of_its_holder_once(
    any_store: Store, clock: Sleeper, caplog: pytest.LogCaptureFixture
) -> None:
    terms = replace(clock.terms, beat=3600.0, expiry=1e4)
    told = r"the first \(process \d+ on .*\) holds \S+ for prune: waiting up to 90 s"
    with (
        held_lease(any_store, "prune", "the first", terms=terms),
        pytest.raises(LeaseHeldError, match="wait for it, or stop it first"),
        held_lease(any_store, "prune", "the second", wait=90.0, terms=terms),
    ):
        pass
    assert [bool(re.fullmatch(told, message)) for message in caplog.messages] == [True]
