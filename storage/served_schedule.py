"""On which schedule a store is retrained, as whoever serves it left word in schedule.json."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from topline.storage.errors import NotFoundError
from topline.storage.fingerprint import seal, unseal
from topline.storage.records import from_fields, now
from topline.storage.schema import check_encoding, encoding
from topline.storage.stores import Store
from topline.storage.stores.urls import join

SCHEDULE_ENCODING: Final = "topline-schedule"

_PATH = "schedule.json"


@dataclass(frozen=True)
class ServedSchedule:
    """A schedule as it was given, such as "0 2 * * *" or "6h", served last at the time `since`."""

    every: str
    timezone: str
    since: str = ""


def note_schedule(store: Store, every: str, timezone: str) -> None:
    """Leave word that the store is retrained on this schedule from now on."""
    record = asdict(ServedSchedule(every, timezone, now()))
    store.write_bytes(_PATH, seal({**encoding(SCHEDULE_ENCODING), **record}))


def read_schedule(store: Store) -> ServedSchedule | None:
    """The schedule that was served last, None where none ever was."""
    place = join(store.url, _PATH)
    try:
        record = unseal(store.read_bytes(_PATH), place)
    except NotFoundError:
        return None
    check_encoding(record, SCHEDULE_ENCODING, place)
    return from_fields(ServedSchedule, record, place)
