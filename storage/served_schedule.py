"""The schedule on which a store is retrained, written to schedule.json by the process that serves it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from topline.storage.errors import NotFoundError
from topline.storage.records import from_fields, now
from topline.storage.schema import SCHEDULE_ENCODING
from topline.storage.stores import Store
from topline.storage.stores.sealed import read_record, write_record
from topline.storage.stores.urls import join

_PATH = "schedule.json"


@dataclass(frozen=True)
class ServedSchedule:
    """A schedule as given, such as "0 2 * * *" or "6h", served last at the time `since`."""

    every: str
    timezone: str
    since: str = ""


def note_schedule(store: Store, every: str, timezone: str) -> None:
    """Record that the store is retrained on this schedule from now on."""
    write_record(store, _PATH, SCHEDULE_ENCODING, asdict(ServedSchedule(every, timezone, now())))


def read_schedule(store: Store) -> ServedSchedule | None:
    """Return the schedule that was served last, None where none ever was."""
    try:
        record = read_record(store, _PATH, SCHEDULE_ENCODING)
    except NotFoundError:
        return None
    return from_fields(ServedSchedule, record, join(store.url, _PATH))
