"""Events of a served store, seen from outside its runs: Prefect's runs, the decision log, free room."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import PrefectException

from topline.pipeline.errors import brief
from topline.pipeline.notices import DISK_LOW_BYTES, Kind, Notice, decision_notices, disk_notice
from topline.solvers.counts import how_many
from topline.storage.errors import StorageError
from topline.storage.models import read_standing
from topline.storage.stores import Store

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
#: The server is asked only every this many polls whether the deployment is paused.
PAUSE_LOOKS = 10
# Number of newest runs polled; fewer end between two polls.
RUNS_SEEN = 50

MISSED = "missed:"
#: Exceptions of Prefect's client when its server does not answer.
UNREACHABLE = (httpx.HTTPError, PrefectException, RuntimeError)
#: Prefect's prefix to a flow's exception.
RAISED = "Flow run encountered an exception: "

_KINDS = {
    StateType.RUNNING: Kind.STARTED,
    StateType.COMPLETED: Kind.FINISHED,
    StateType.FAILED: Kind.FAILED,
    StateType.CRASHED: Kind.FAILED,
    StateType.CANCELLED: Kind.CANCELLED,
}

Runs = Callable[[], list[FlowRun]]


class Follower:
    """Finds what is new since the last poll; the state before the first poll is not reported.

    `runs` reads the schedule's newest runs, `paused` whether none starts by itself; both fail as Prefect's
    client does.  Successive failures for one reason are reported once, and so is their end.
    """

    def __init__(self, store: Store, runs: Runs, paused: Callable[[], bool] = bool) -> None:
        self._store = store
        self._runs = runs
        self._paused = paused
        self._is_paused = False
        self._looks = 0
        self._failure, self._failures = "", 0
        self._states: dict[UUID, Kind] = {}
        self._missed: set[str] = set()
        self._decided: int | None = None
        self._disk_is_low = False
        self._unreachable = False
        self._first = True

    def poll(self) -> list[Notice]:
        """Return notices of everything since the last poll, runs before decisions."""
        found = [*self._new_states(), *self._new_decisions(), *self._disk()]
        self._first = False
        self._looks += 1
        return found

    def _new_states(self) -> Iterator[Notice]:
        try:
            runs = self._runs()
            paused = self._paused() if self._looks % PAUSE_LOOKS == 0 else self._is_paused
        except UNREACHABLE as error:
            if not self._unreachable:
                self._unreachable = True
                yield server_lost(self._store.url, error)
            return
        if self._unreachable:
            self._unreachable = False
            said = "Prefect's server answers again"
            yield Notice(Kind.WELL_AGAIN, self._store.url, said, {"reachable": True})
        if paused is not self._is_paused:
            self._is_paused = paused
            said = "paused on Prefect's server: nothing is retrained" if paused else "resumed"
            told = Kind.PAUSED if paused else Kind.WELL_AGAIN
            yield Notice(told, self._store.url, f"the deployment is {said}", {"paused": paused})
        for run in reversed(runs):
            kind = None if run.state is None else _KINDS.get(run.state.type)
            if kind is Kind.CANCELLED and _said(run).startswith(MISSED):
                kind = Kind.MISSED
            if kind is None or self._states.get(run.id) is kind:
                continue
            before, self._states[run.id] = self._states.get(run.id), kind
            if self._first and kind is not Kind.STARTED:
                continue
            if kind is Kind.MISSED:
                # Runs that were coalesced into one have the same message.
                known, self._missed = self._missed, self._missed | {_said(run)}
                if self._missed == known:
                    continue
            if before is None and kind not in (Kind.STARTED, Kind.MISSED, Kind.CANCELLED):
                # It began and ended between two polls.
                yield self._notice_of(run, Kind.STARTED)
            yield from self._ended(self._notice_of(run, kind), _said(run))

    def _ended(self, notice: Notice, said: str) -> Iterator[Notice]:
        """Yield a run's notice, marking a repeated failure as such, and the all-clear."""
        if notice.kind is Kind.FAILED:
            again = bool(self._failures) and said == self._failure
            self._failure, self._failures = said, self._failures + 1
            notice = replace(notice, kind=Kind.FAILED_AGAIN if again else Kind.FAILED)
        yield notice
        if notice.kind is Kind.FINISHED and self._failures:
            text = f"{notice.text}, after {how_many(self._failures, 'runs')} that failed: {self._failure}"
            self._failure, self._failures = "", 0
            yield Notice(Kind.WELL_AGAIN, self._store.url, text)

    def _notice_of(self, run: FlowRun, kind: Kind) -> Notice:
        said = "" if kind is Kind.STARTED else _said(run)
        facts = {"flow_run": run.name, "flow_run_id": str(run.id)}
        text = f"{run.name}: {said}" if said else run.name
        if kind is Kind.MISSED:
            text = said.removeprefix(MISSED).strip()
        return Notice(kind, self._store.url, text, facts)

    def _new_decisions(self) -> Iterator[Notice]:
        try:
            standing = read_standing(self._store)
        except StorageError as error:
            if self._decided != -1:
                self._decided = -1
                yield Notice(Kind.FAILED, self._store.url, f"the decision log cannot be read: {error}")
            return
        decided = self._decided
        self._decided = standing.seq
        if decided is None or decided < 0:
            return
        for entry in standing.entries:
            if entry.seq > decided:
                yield from decision_notices(entry, self._store.url)

    def _disk(self) -> Iterator[Notice]:
        free = self._store.free_bytes()
        low = free is not None and free < DISK_LOW_BYTES
        if low and not self._disk_is_low and free is not None:
            yield disk_notice(self._store.url, free)
        self._disk_is_low = low


def server_lost(store: str, error: BaseException) -> Notice:
    """Return the notice of a server that does not answer."""
    return Notice(
        Kind.FAILED, store, f"Prefect's server does not answer: {brief(error)}", {"reachable": False}
    )


def _said(run: FlowRun) -> str:
    """Return the message of a run's state without Prefect's prefix."""
    return "" if run.state is None else (run.state.message or "").removeprefix(RAISED)


def in_states(states: Iterable[StateType]) -> FlowRunFilter:
    """Return a filter of flow runs in one of these states."""
    return FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(states))))


def of_deployment(deployment: UUID) -> DeploymentFilter:
    """Return a filter of what belongs to a deployment."""
    return DeploymentFilter(id=DeploymentFilterId(any_=[deployment]))


def runs_of(deployment: UUID) -> Runs:
    """Return what reads the newest runs of a deployment that have begun, or were cancelled before."""
    begun = in_states(_KINDS)

    def read() -> list[FlowRun]:
        with get_client(sync_client=True) as client:
            return client.read_flow_runs(
                flow_run_filter=begun,
                deployment_filter=of_deployment(deployment),
                # By start, since the run that makes up for missed ones was due before them all.
                sort=FlowRunSort.START_TIME_DESC,
                limit=RUNS_SEEN,
            )

    return read


def pauses_of(deployment: UUID) -> Callable[[], bool]:
    """Return a function that reads whether a deployment, or each of its schedules, is paused."""

    def read() -> bool:
        with get_client(sync_client=True) as client:
            found = client.read_deployment(deployment)
        return found.paused or not any(schedule.active for schedule in found.schedules)

    return read


@contextmanager
def followed(follower: Follower, say: Callable[[Notice], None]) -> Iterator[None]:
    """Poll repeatedly in a thread, and once more at the end; `say` each notice."""
    ended = threading.Event()

    def follow() -> None:
        while True:
            last = ended.is_set()
            for notice in follower.poll():
                say(notice)
            if last:
                return
            ended.wait(LOOK_SECONDS)

    # Prefect keeps its settings in context variables, which a new thread lacks.
    thread = threading.Thread(target=copy_context().run, args=(follow,), name="topline-follower", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
