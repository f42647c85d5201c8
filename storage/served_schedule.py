"""The schedule on which a store is retrained, and how its runs went: schedule.json.

The process that serves it writes it; where a deployment of Prefect's does, each of its runs.
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
    """A schedule as given, such as "0 2 * * *" or "6h", and what is known of the process that serves it.

    It was served from the time `since` on, last gave a sign of life at `beat`, and said at `ended` that it
    ends, by the `error` if it was one; a process that was killed never does.  `process` is its machine and
    number, or the `deployment` whose runs say all this.  It has been `paused` since then, and its Prefect
    server `lost`.  The last run that succeeded did at `succeeded`; after it came so many `failures` in a row
    from `failing` on, the last one for the reason `failure`.  A run of a deployment is under way since `run`.
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
        """Return the same with a sign of life at the time `when`, in the form of `records.now`."""
        return replace(self, since=self.since or when, beat=when)

    def after(self, when: str, failure: str = "") -> ServedSchedule:
        """Return the same after a run that ended at `when`, by a failure where one is named."""
        if not failure:
            return replace(self, run="", succeeded=when, failing="", failures=0, failure="")
        failing = self.failing or when
        return replace(self, run="", failing=failing, failures=self.failures + 1, failure=failure)


def note_schedule(store: Store, schedule: ServedSchedule) -> None:
    """Record what is known of the schedule of a store, in the place of what was."""
    write_record(store, _PATH, SCHEDULE_ENCODING, asdict(schedule))


def read_schedule(store: Store) -> ServedSchedule | None:
    """Return the schedule that was served last, None where none ever was.

    Raises `FormatError` for times that are none, and as `read_record` does.
    """
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
