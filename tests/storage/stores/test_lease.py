"""One holder a lease, on any kind of store, and none that is dead or hangs keeps it."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.storage.clocks import FakeClock
from tests.storage.samples import bucket_when_slow
from topline.storage.errors import AccessError
from topline.storage.stores import LeaseHeldError, LeaseLostError, LeaseTerms, Store, held_lease, holder

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


def test_one_of_many_candidates_holds_it_at_a_time(any_store: Store) -> None:
    inside: list[int] = []
    together: list[int] = []

    def work(number: int) -> None:
        with held_lease(any_store, "retrain", f"thread {number}", wait=600.0, terms=PATIENT) as lease:
            inside.append(number)
            together.append(len(inside))
            lease.check()
            inside.remove(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == [1, 1, 1, 1]
    assert holder(any_store, "retrain") is None


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
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(LeaseHeldError, match="a child"), held_lease(local_store, "retrain", "me"):
            pass
        assert "a child" in str(holder(local_store, "retrain"))
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert holder(local_store, "retrain") is None, "pages do not show it at work for ever"
        with held_lease(local_store, "retrain", "me") as lease:
            assert lease.number == 2


@bucket_when_slow
def test_who_is_not_heard_of_loses_it_and_is_told(any_store: Store) -> None:
    clock = FakeClock()
    silent = LeaseTerms(beat=3600.0, expiry=60.0, clock=clock.clock)
    with held_lease(any_store, "retrain", "one that hangs", terms=silent) as lease:
        lease.check()
        usual = LeaseTerms(clock=clock.clock)
        with pytest.raises(LeaseHeldError), held_lease(any_store, "retrain", "me", wait=59.0, terms=usual):
            pass
        with held_lease(any_store, "retrain", "me", wait=60.0, terms=usual) as mine:
            mine.check()
            with pytest.raises(LeaseLostError, match="was taken over by me"):
                lease.check()


@bucket_when_slow
def test_who_lives_keeps_it_for_many_times_its_expiry(any_store: Store) -> None:
    clock = FakeClock()
    terms = LeaseTerms(clock=clock.clock)
    with held_lease(any_store, "retrain", "one that lives", terms=terms) as lease:
        with pytest.raises(LeaseHeldError), held_lease(any_store, "retrain", "me", wait=150.0, terms=terms):
            pass
        assert clock.now >= 150.0
        lease.check()


@bucket_when_slow
@pytest.mark.parametrize("jump", [-86400.0, 86400.0])
def test_a_clock_that_jumped_takes_no_lease_away(any_store: Store, jump: float) -> None:
    """A beat that looks a day old, or a day early, is watched, and found to go on."""
    clock = FakeClock()
    with held_lease(any_store, "retrain", "one that lives", terms=LeaseTerms(clock=clock.clock)) as lease:
        jumped = replace(clock.clock, wall=lambda: clock.clock.wall() + jump)
        theirs = held_lease(any_store, "retrain", "me", terms=LeaseTerms(clock=jumped))
        with pytest.raises(LeaseHeldError), theirs:
            pass
        lease.check()


def test_a_place_that_cannot_be_written_is_said(local_store: Store) -> None:
    """Whoever runs the tests may write anywhere: here a file lies where the folder would be made."""
    local_store.write_bytes("leases", b"")
    with pytest.raises(AccessError, match=r"leases/retrain/00000001\.lock cannot be used: "):
        held_lease(local_store, "retrain", "a test").__enter__()
