"""One training a run, and none that is dead keeps it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from storage.errors import ConflictError
from storage.run_lock import run_lock
from storage.runs import create_run
from storage.stores import Store
from storage.verification import verify_store

ROOT = Path(__file__).resolve().parents[2]
HOLDER = """
import sys, time
from storage.run_lock import run_lock
from storage.stores import open_store
with run_lock(open_store(sys.argv[1]), sys.argv[2]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_run_has_one_holder_at_a_time(local_store: Store) -> None:
    run = create_run(local_store, {})
    other = create_run(local_store, {})
    with run_lock(local_store, run):
        held = rf"run {run} is already being trained by process {os.getpid()} on \S+ since \S+: wait for it"
        with pytest.raises(ConflictError, match=held), run_lock(local_store, run):
            pass
        with run_lock(local_store, other):
            pass
    with run_lock(local_store, run):
        pass
    assert verify_store(local_store) == []


def test_a_killed_holder_holds_nothing(local_store: Store) -> None:
    run = create_run(local_store, {})
    words = [sys.executable, "-c", HOLDER, local_store.url, run]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        who = re.escape(f"process {holder.pid} ")
        with pytest.raises(ConflictError, match=who), run_lock(local_store, run):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with run_lock(local_store, run):
            pass


def test_an_object_store_lets_everybody_in(s3_store: Store) -> None:
    run = create_run(s3_store, {})
    with run_lock(s3_store, run), run_lock(s3_store, run):
        pass
