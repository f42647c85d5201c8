"""The job never waits for its artifacts, and their last state arrives whenever somebody takes it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import pytest

from topline.flows.reporting import Entry, LatestValues


class Server:
    """Notes what is posted; fails while `down`, and waits at `gate` each time."""

    def __init__(self) -> None:
        self.got: list[float] = []
        self.down = False
        self.attempts = 0
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, new: Mapping[str, Entry]) -> None:
        self.attempts += 1
        self.gate.wait()
        if self.down:
            raise ConnectionError("the server is down")
        self.got += [entry.data for entry in new.values()]


def share(value: float) -> Entry:
    return Entry("progress", "share done", value)


def wait_for(condition: object, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.005)


def test_each_state_that_is_seen_is_posted_once_and_in_order() -> None:
    server = Server()
    values = LatestValues(server, interval=0.01)
    for value in (10, 20, 30):
        values.publish("share", share(value))
        wait_for(lambda value=value: server.got and server.got[-1] == value)
    assert values.close(120.0)
    assert server.got == [10, 20, 30]


def test_publishing_does_not_wait_for_a_server_that_hangs_and_closing_gives_up_at_the_deadline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server()
    server.gate.clear()
    values = LatestValues(server, interval=0.01)
    values.publish("share", share(0))
    wait_for(lambda: server.attempts == 1)
    # A single wait for the server would take for ever: its gate opens at the end of this test.
    for value in range(10_000):
        values.publish("share", share(value))
    assert server.attempts == 1
    begun = time.monotonic()
    assert not values.close(0.3)
    assert time.monotonic() - begun > 0.25
    assert "did not reach" in caplog.text
    server.gate.set()


def test_a_server_that_was_down_gets_the_last_state_when_it_is_back() -> None:
    server = Server()
    server.down = True
    values = LatestValues(server, interval=0.01)
    values.publish("share", share(10))
    wait_for(lambda: server.attempts >= 3)
    values.publish("share", share(100))
    server.down = False
    assert values.close(120.0)
    assert server.got == [100]


def test_closing_tries_a_server_that_fails_again_until_the_deadline() -> None:
    """Each try takes ten seconds of a clock that nothing else moves, so that thirty of them fit."""
    now, server = [0.0], Server()
    server.down = True

    def failing(new: Mapping[str, Entry]) -> None:
        now[0] += 10.0
        server(new)

    values = LatestValues(failing, interval=0.01, clock=lambda: now[0])
    values.publish("share", share(10))
    assert not values.close(300.0)
    assert server.attempts >= 30
    assert server.got == []
