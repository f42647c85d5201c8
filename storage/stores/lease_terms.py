"""How a lease is kept and by which clock, and who has one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True)
class Clock:
    """Time as a lease sees it, in seconds; tests pass one that they advance themselves.

    `monotonic` never jumps, `wall` counts from 1970 in UTC, `sleep` waits, and `wait` does too, but returns
    True at once when its event is set.
    """

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    wait: Callable[[threading.Event, float], bool] = threading.Event.wait


@dataclass(frozen=True)
class LeaseTerms:
    """How a lease is kept: a beat every `beat` seconds, free without one for `expiry` seconds."""

    beat: float = 10.0
    expiry: float = 60.0
    clock: Clock = Clock()


DEFAULT_TERMS = LeaseTerms()


@dataclass(frozen=True)
class Tenant:
    """Who holds a lease, and when it was last renewed: seconds since 1970 by the holder's own clock."""

    by: str
    process: int
    host: str
    since: str
    renewed: float

    def is_silent(self, now: float) -> bool:
        """Return whether three renewals are overdue at the time `now`: it was killed, or hangs."""
        return now - self.renewed > 3 * DEFAULT_TERMS.beat

    def where(self, now: float) -> str:
        """Return its process, and how long ago it renewed the lease."""
        age = f"renewed {max(0.0, now - self.renewed):.0f} s ago"
        if self.is_silent(now):
            last = datetime.fromtimestamp(self.renewed, UTC)
            age = f"not heard of since {last.isoformat(timespec='seconds')}"
        return f"process {self.process} on {self.host} since {self.since}, {age}"

    def words(self, now: float) -> str:
        """Return who it is, where and since when."""
        return f"{self.by} ({self.where(now)})"
