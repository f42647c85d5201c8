"""The values never makes the job wait, and its last state arrives whenever there is somebody to take it."""

from __future__ import annotations

import threading
import time
from typing import ClassVar

import pytest

from topline.flows.artifacts import Entry, Forwarder, LatestValues


class Recorder:
    """A receiver that notes what it gets; fails while `down`, and waits at `gate` in each delivery."""

    recoverable: ClassVar[tuple[type[Exception], ...]] = (ConnectionError,)

    def __init__(self) -> None:
        self.got: list[tuple[str, float]] = []
        self.down = False
        self.attempts = 0
        self.gate = threading.Event()
        self.gate.set()
        self.closed = False

    def deliver(self, key: str, entry: Entry) -> None:
        self.attempts += 1
        self.gate.wait()
        if self.down:
            raise ConnectionError("the server is down")
        self.got.append((key, entry.data))

    def close(self) -> None:
        self.closed = True


def percent(value: float) -> Entry:
    return Entry("progress", "share done", value)


def wait_for(condition: object, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.005)


def test_only_entries_with_newer_are_given_and_each_key_holds_its_latest() -> None:
    values = LatestValues()
    values.publish("a", percent(1))
    values.publish("b", percent(2))
    seen = {key: version for key, (version, _) in values.newer_than({}).items()}
    assert values.newer_than(seen) == {}
    for value in range(1000):
        values.publish("a", percent(value))
    newer = values.newer_than(seen)
    assert list(newer) == ["a"]
    assert newer["a"][1].data == 999


def test_a_moving_entry_is_delivered_more_than_once_and_in_order() -> None:
    values, receiver = LatestValues(), Recorder()
    forwarder = Forwarder(values, receiver, interval=0.01)
    forwarder.start()
    for value in (10, 20, 30):
        values.publish("share", percent(value))
        wait_for(lambda value=value: receiver.got and receiver.got[-1] == ("share", value))
    assert forwarder.close(120.0)
    assert [value for _, value in receiver.got] == [10, 20, 30]
    assert receiver.closed


def test_publishing_does_not_wait_for_a_receiver_that_hangs_and_closing_gives_up_at_the_deadline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    values, receiver = LatestValues(), Recorder()
    receiver.gate.clear()
    forwarder = Forwarder(values, receiver, interval=0.01)
    forwarder.start()
    values.publish("share", percent(0))
    wait_for(lambda: receiver.attempts == 1)
    # A single wait for the receiver would take for ever: its gate opens at the end of this test.
    for value in range(10_000):
        values.publish("share", percent(value))
    assert receiver.attempts == 1
    begun = time.monotonic()
    assert not forwarder.close(0.3)
    assert time.monotonic() - begun > 0.25
    assert "did not reach" in caplog.text
    receiver.gate.set()


def test_a_server_that_was_down_gets_the_last_state_when_it_is_back() -> None:
    values, receiver = LatestValues(), Recorder()
    receiver.down = True
    forwarder = Forwarder(values, receiver, interval=0.01, longest_pause=0.05)
    forwarder.start()
    values.publish("share", percent(10))
    wait_for(lambda: receiver.attempts >= 3)
    values.publish("share", percent(100))
    receiver.down = False
    assert forwarder.close(120.0)
    assert receiver.got == [("share", 100)]


def test_closing_tries_a_failing_receiver_again_until_the_deadline() -> None:
    """Each try takes ten seconds of a clock that nothing else moves, so that thirty of them fit."""
    now = [0.0]

    class Failing(Recorder):
        def deliver(self, key: str, entry: Entry) -> None:
            now[0] += 10.0
            super().deliver(key, entry)

    values, receiver = LatestValues(), Failing()
    receiver.down = True
    forwarder = Forwarder(values, receiver, interval=0.01, clock=lambda: now[0])
    forwarder.start()
    values.publish("share", percent(10))
    assert not forwarder.close(300.0)
    assert receiver.attempts >= 30
    assert receiver.got == []
    assert receiver.closed
