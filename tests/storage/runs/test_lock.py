"""One training a run, and none that is dead keeps it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.clocks import FakeClock
from topline.storage.runs import create_run, run_lock
from topline.storage.stores import LeaseHeldError, LeaseLostError, LeaseTerms, Store
from topline.storage.verification import verify_store

ROOT = Path(__file__).resolve().parents[3]
SILENT = LeaseTerms(beat=3600.0, expiry=3600.0)
HOLDER = """
import sys, time
from topline.storage.stores import LeaseTerms
from topline.storage.runs.lock import run_lock
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
        assert holder.stdout is not None
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
