"""The retraining schedule of a store and the state of its runs: schedule.json.

Written by the process that serves it, or by each run of a Prefect deployment.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import datetime

from topline.storage.errors import FormatError, NotFoundError
from topline.storage.records import from_fields
from topline.storage.schema import SCHEDULE_ENCODING
from topline.storage.stores import Store
from topline.storage.stores.sealed import read_record, write_record
from topline.storage.stores.urls import join

_PATH = "schedule.json"


@dataclass(frozen=True)
class ServedSchedule:
    """A schedule as given, such as "0 2 * * *" or "6h", and the state of the process that serves it.

    Served since `since`, with the last heartbeat at `beat`; `ended` and `error` record its end, unless the
    process was killed.  `process` is its machine and number, or the `deployment` whose runs record all this.
    It has been `paused` since then, and its Prefect server `lost`.  The last successful run ended at
    `succeeded`; it was followed by `failures` failed ones since `failing`, the last for the reason `failure`.
    A deployment's run is in progress since `run`.
    """

    every: str
    timezone: str
    since: str = ""
    beat: str = ""
    ended: str = ""
    process: str = ""
    deployment: bool = False
    error: str = ""
    paused: str = ""
    lost: str = ""
    run: str = ""
    succeeded: str = ""
    failing: str = ""
    failures: int = 0
    failure: str = ""

    def beating(self, when: str) -> ServedSchedule:
        """Return the schedule with a heartbeat at the time `when`, in the form of `records.now`."""
        return replace(self, since=self.since or when, beat=when)

    def after(self, when: str, failure: str = "") -> ServedSchedule:
        """Return the schedule after a run that ended at `when`, failed if `failure` is given."""
        if not failure:
            return replace(self, run="", succeeded=when, failing="", failures=0, failure="")
        failing = self.failing or when
        return replace(self, run="", failing=failing, failures=self.failures + 1, failure=failure)


def note_schedule(store: Store, schedule: ServedSchedule) -> None:
    """Record the schedule of a store and its state, replacing the previous record."""
    write_record(store, _PATH, SCHEDULE_ENCODING, asdict(schedule))


def read_schedule(store: Store) -> ServedSchedule | None:
    """Return the last schedule served, None without one; `FormatError` for invalid times."""
    try:
        record = read_record(store, _PATH, SCHEDULE_ENCODING)
    except NotFoundError:
        return None
    place = join(store.url, _PATH)
    found = from_fields(ServedSchedule, record, place)
    for name in ("since", "beat", "ended", "paused", "lost", "run", "succeeded", "failing"):
        when = getattr(found, name)
        try:
            sound = not when or datetime.fromisoformat(when).tzinfo is not None
        except (TypeError, ValueError):
            sound = False
        if not sound or not (found.beat or found.since):
            raise FormatError(f"{place} has {name} {str(when)[:40]!r}, which is no time with its zone")
    return found
