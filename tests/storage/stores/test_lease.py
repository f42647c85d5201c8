"""One holder a lease, on any kind of store, and none that is dead or hangs keeps it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from topline.storage.errors import AccessError, DiskFullError
from topline.storage.stores import LeaseHeldError, LeaseTerms, Store, held_lease, holder

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
