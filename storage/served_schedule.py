"""The schedule on which a store is retrained, written to schedule.json by the process that serves it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from topline.storage.errors import NotFoundError
from topline.storage.records import from_fields
from topline.storage.schema import SCHEDULE_ENCODING
from topline.storage.stores import Store
from topline.storage.stores.sealed import read_record, write_record
from topline.storage.stores.urls import join

_PATH = "schedule.json"


@dataclass(frozen=True)
class ServedSchedule:
    """A schedule as given, such as "0 2 * * *" or "6h", and what is known of the process that serves it.

    It was served from the time `since` on, last gave a sign of life at `beat`, and said at `ended` that it
    ends; a process that was killed never does.  `process` is its machine and number.
    """

    every: str
    timezone: str
    since: str = ""
    beat: str = ""
    ended: str = ""
    process: str = ""

    def beating(self, when: str) -> ServedSchedule:
        """Return the same with a sign of life at the time `when`, in the form of `records.now`."""
        return replace(self, since=self.since or when, beat=when)


def note_schedule(store: Store, schedule: ServedSchedule) -> None:
    """Record what is known of the schedule of a store, in the place of what was."""
    write_record(store, _PATH, SCHEDULE_ENCODING, asdict(schedule))


def read_schedule(store: Store) -> ServedSchedule | None:
    """Return the schedule that was served last, None where none ever was."""
    try:
        record = read_record(store, _PATH, SCHEDULE_ENCODING)
    except NotFoundError:
        return None
    return from_fields(ServedSchedule, record, join(store.url, _PATH))
