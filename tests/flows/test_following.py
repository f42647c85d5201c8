"""What `topline serve` says: each change of a run once, each decision once, in their order."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import Cancelled, Completed, Crashed, Failed, Running, Scheduled

from topline.flows import following
from topline.flows.following import RUNS_SEEN, Follower, followed, runs_of
from topline.pipeline.notices import Kind, Notice
from topline.storage.models import DecisionRecord, read_standing, record_decision
from topline.storage.stores import Store, open_store

FLOW = uuid4()


def flow_run(number: UUID, name: str, state: State) -> FlowRun:
    return FlowRun(id=number, flow_id=FLOW, name=name, state=state)


class Runs:
    """Prefect's newest runs, as the test sets them; newest first, as the server answers."""

    def __init__(self) -> None:
        self.now: dict[UUID, FlowRun] = {}
        self.error: Exception | None = None

    def set(self, name: str, state: State, number: UUID | None = None) -> UUID:
        number = number or uuid4()
        self.now = {number: flow_run(number, name, state), **self.now}
        self.now[number] = flow_run(number, name, state)
        return number

    def __call__(self) -> list[FlowRun]:
        if self.error is not None:
            raise self.error
        return list(self.now.values())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store", create=True)


def said(notices: list[Notice]) -> list[tuple[str, str]]:
    return [(one.kind.value, one.text) for one in notices]


def test_each_change_of_a_run_is_said_once(store: Store) -> None:
    runs = Runs()
    follower = Follower(store, runs)
    assert follower.poll() == []
    run = runs.set("nightly", Scheduled())
    assert follower.poll() == []
    runs.set("nightly", Running(), run)
    assert said(follower.poll()) == [("started", "nightly")]
    assert follower.poll() == []
    runs.set("nightly", Completed(message="unchanged: nothing is new"), run)
    assert said(follower.poll()) == [("finished", "nightly: unchanged: nothing is new")]
    assert follower.poll() == []


@pytest.mark.parametrize("state", [Failed, Crashed])
def test_a_run_that_fails_between_two_looks_is_said_whole(store: Store, state: Callable[..., State]) -> None:
    runs = Runs()
    follower = Follower(store, runs)
    follower.poll()
    runs.set("nightly", state(message="no image can be read"))
    assert said(follower.poll()) == [("started", "nightly"), ("failed", "nightly: no image can be read")]


def test_an_exception_is_told_without_the_words_that_prefect_puts_before_each(store: Store) -> None:
    runs = Runs()
    follower = Follower(store, runs)
    follower.poll()
    runs.set("nightly", Failed(message="Flow run encountered an exception: InputError: no images"))
    assert said(follower.poll())[-1] == ("failed", "nightly: InputError: no images")


def test_missed_and_refused_runs_are_told_apart(store: Store) -> None:
    runs = Runs()
    follower = Follower(store, runs)
    follower.poll()
    runs.set("second", Cancelled(message="missed: coalesced into the run first"))
    runs.set("third", Cancelled(message="the lease is held by a neighbour"))
    assert [kind for kind, _ in said(follower.poll())] == ["missed", "cancelled"]


def test_runs_that_were_missed_together_are_told_once(store: Store) -> None:
    runs = Runs()
    follower = Follower(store, runs)
    follower.poll()
    for name in ("second", "third"):
        runs.set(name, Cancelled(message="missed: 3 runs coalesced into the run first (1)"))
    assert said(follower.poll()) == [("missed", "3 runs coalesced into the run first (1)")]
    runs.set("fourth", Cancelled(message="missed: 3 runs coalesced into the run first (1)"))
    assert follower.poll() == []
    runs.set("sixth", Cancelled(message="missed: 1 run coalesced into the run fifth (2)"))
    assert said(follower.poll()) == [("missed", "1 run coalesced into the run fifth (2)")]


def test_what_was_before_is_no_news_but_what_runs_is(store: Store) -> None:
    runs = Runs()
    runs.set("old", Failed(message="long ago"))
    runs.set("now", Running())
    record_decision(store, read_standing(store), DecisionRecord("promote", "m0001", "the first", "a test"))
    assert said(Follower(store, runs).poll()) == [("started", "now")]


def test_a_decision_is_said_once(store: Store) -> None:
    follower = Follower(store, Runs())
    follower.poll()
    record_decision(store, read_standing(store), DecisionRecord("promote", "m0001", "the first", "a test"))
    assert said(follower.poll()) == [("promoted", "m0001 is champion: the first")]
    assert follower.poll() == []


def test_a_server_that_does_not_answer_is_said_once_and_nothing_is_lost(store: Store) -> None:
    runs = Runs()
    follower = Follower(store, runs)
    run = runs.set("nightly", Running())
    follower.poll()
    runs.error = httpx.ConnectError("refused")
    assert [kind for kind, _ in said(follower.poll())] == ["failed"]
    assert follower.poll() == []
    runs.error = None
    runs.set("nightly", Completed(message="kept: worse"), run)
    assert said(follower.poll()) == [
        ("well again", "Prefect's server answers again"),
        ("finished", "nightly: kept: worse"),
    ]


def test_failures_for_one_reason_are_told_once_and_their_end_is_told(store: Store) -> None:
    runs = Runs()
    follower = Follower(store, runs)
    follower.poll()

    def ended(name: str, state: State) -> list[Notice]:
        runs.set(name, state)
        return [one for one in follower.poll() if one.kind is not Kind.STARTED]

    told = [
        [(one.kind.value, one.kind.told) for one in ended(name, state)]
        for name, state in [
            ("one", Failed(message="no images")),
            ("two", Failed(message="no images")),
            ("three", Failed(message="no room")),
            ("four", Completed(message="kept")),
            ("five", Completed(message="kept")),
        ]
    ]
    assert told == [
        [("failed", True)],
        [("failed again", False)],
        [("failed", True)],
        [("finished", False), ("well again", True)],
        [("finished", False)],
    ]


def test_a_pause_is_told_when_it_begins_and_ends(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "PAUSE_LOOKS", 1)
    paused = [False, True, True, False]
    follower = Follower(store, Runs(), lambda: paused.pop(0))
    found = [[(one.kind.value, one.facts["paused"]) for one in follower.poll()] for _ in range(4)]
    assert found == [[], [("paused", True)], [], [("well again", False)]]


def test_little_room_is_said_when_it_becomes_little(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    room = [10 << 30, 5 << 20, 4 << 20, 10 << 30, 3 << 20]
    monkeypatch.setattr(type(store), "free_bytes", lambda self: room.pop(0))
    follower = Follower(store, Runs())
    found = [said(follower.poll()) for _ in range(5)]
    assert [len(one) for one in found] == [0, 1, 0, 0, 1]
    assert found[1][0][1].startswith("5 MiB are left")


@flow(name="followed")
def followed_flow() -> None:
    """Do nothing."""


@pytest.mark.prefect
def test_runs_that_are_planned_do_not_hide_those_that_ran(prefect_server: str) -> None:
    deployment = followed_flow.to_deployment("many").apply()
    now = datetime.now(UTC)
    with get_client(sync_client=True) as client:
        ran, *_ = [
            client.create_flow_run_from_deployment(
                deployment, state=Scheduled(scheduled_time=now + timedelta(minutes=minutes))
            )
            for minutes in range(-1, RUNS_SEEN + 2)
        ]
        client.set_flow_run_state(ran.id, Crashed(message="its process is gone"), force=True)
    assert [run.id for run in runs_of(deployment)()] == [ran.id]


@pytest.mark.prefect
def test_runs_that_were_missed_do_not_hide_the_one_that_makes_up_for_them(
    prefect_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was due before them all, and nobody heard how it ended."""
    monkeypatch.setattr(following, "RUNS_SEEN", 2)
    deployment = followed_flow.to_deployment("missed").apply()
    now = datetime.now(UTC)
    with get_client(sync_client=True) as client:
        first, *missed = [
            client.create_flow_run_from_deployment(
                deployment, state=Scheduled(scheduled_time=now - timedelta(hours=hours))
            )
            for hours in (4, 3, 2, 1)
        ]
        for run in missed:
            client.set_flow_run_state(run.id, Cancelled(message="missed: 3 runs"), force=True)
        client.set_flow_run_state(first.id, Running(), force=True)
        client.set_flow_run_state(first.id, Failed(message="no room is left"), force=True)
    assert [run.id for run in runs_of(deployment)()] == [first.id, missed[-1].id]


def test_the_last_look_comes_after_the_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens while the server ends is still said."""
    monkeypatch.setattr(following, "LOOK_SECONDS", 1e6)
    runs, heard = Runs(), []
    follower = Follower(store, runs)
    follower.poll()
    with followed(follower, heard.append):
        runs.set("nightly", Crashed(message="stopped"))
    assert ("failed", "nightly: stopped") in said(heard)
