"""A clock that only its sleepers advance, so that no test waits for the time to pass."""

from __future__ import annotations

import threading
import time

from topline.storage.stores import Clock


class FakeClock:
    """Whoever sleeps moves the time on; whose wait is over by then has its turn before the sleeper wakes."""

    def __init__(self) -> None:
        self.now = 0.0
        self._started = time.time()
        self._turn = threading.Condition()
        self._waiting: dict[threading.Thread, float] = {}
        self._busy: set[threading.Thread] = set()

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.now, lambda: self._started + self.now, self.sleep, self.wait)

    def sleep(self, seconds: float) -> None:
        with self._turn:
            self.now += seconds
            due = {thread for thread, end in self._waiting.items() if end <= self.now}
            self._busy |= due
            self._turn.notify_all()
            while any(thread.is_alive() for thread in due & self._busy):
                self._turn.wait(0.01)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        me = threading.current_thread()
        with self._turn:
            self._busy.discard(me)
            self._waiting[me] = self.now + seconds
            self._turn.notify_all()
            while not event.is_set() and self.now < self._waiting[me]:
                self._turn.wait(0.01)
            del self._waiting[me]
        return event.is_set()
