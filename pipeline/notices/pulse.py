"""The sign of life of a process that serves a schedule."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from topline.pipeline.telemetry import BEAT_SECONDS
from topline.storage.errors import StorageError
from topline.storage.records import now
from topline.storage.served_schedule import ServedSchedule, note_schedule
from topline.storage.stores import Store

logger = logging.getLogger(__name__)

Wait = Callable[[threading.Event, float], bool]


@contextmanager
def pulse(
    store: Store,
    every: str,
    timezone: str,
    *,
    clock: Callable[[], str] = now,
    wait: Wait = threading.Event.wait,
) -> Iterator[None]:
    """Say in the store that the schedule is served, every half a minute, and at the end that it is not.

    `clock` is the time as records write it; `wait` waits for an event for some seconds at most and says
    whether it is set.  A store that cannot be written now is tried again at the next beat.
    """
    process = f"{socket.gethostname()}:{os.getpid()}"
    schedule = ServedSchedule(every, timezone, process=process).beating(clock())
    note_schedule(store, schedule)
    ended = threading.Event()

    def beat() -> None:
        while not wait(ended, BEAT_SECONDS):
            _note(store, schedule.beating(clock()))

    thread = threading.Thread(target=beat, name="topline-pulse", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        last = clock()
        _note(store, replace(schedule.beating(last), ended=last))


def _note(store: Store, schedule: ServedSchedule) -> None:
    try:
        note_schedule(store, schedule)
    except (StorageError, OSError) as error:
        logger.warning("the heartbeat could not be written: %s", error)
