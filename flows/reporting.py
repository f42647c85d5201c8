"""A flow run's page: progress, gaps and a summary as artifacts, and how a run ends that somebody stops.

Training never waits for them: `LatestValues` starts its own thread, and abandons it if the server is
gone. One entry is held per key, so memory is bounded: a slow server skips states, but never the last one.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, cast
from urllib.parse import urlsplit
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.context import FlowRunContext
from prefect.logging.handlers import APILogHandler
from prefect.settings import PREFECT_API_REQUEST_TIMEOUT
from prefect.states import Cancelled

from topline.flows.following import UNREACHABLE
from topline.pipeline.errors import InterruptedRunError, is_stop
from topline.pipeline.interrupts import terminating
from topline.pipeline.log import kept_lines
from topline.pipeline.progress import Progress, begin
from topline.pipeline.telemetry import time_text
from topline.storage.stores import masked

GAPS_SHOWN = 20
GAP_COLUMNS = ("round", "seconds", "primal", "dual", "gap", "relative_gap", "step")
PUBLISH_SECONDS = 0.25

Inputs = ParamSpec("Inputs")
Result = TypeVar("Result")


@dataclass
class Caller:
    """The caller of a flow in this process: its progress display, and the flow's outcome.

    `result` and `error` are set before Prefect reports them, so that a dying server costs no stored model.
    """

    progress: Progress | None = None
    finished: bool = False
    result: Any = None
    error: BaseException | None = None


_caller: ContextVar[Caller | None] = ContextVar("topline_caller", default=None)


def current_caller() -> Caller:
    """Return the caller in this context; without one, whatever is recorded is lost."""
    return _caller.get() or Caller()


@contextmanager
def called_by(caller: Caller) -> Iterator[None]:
    """Let flows started inside the block also report to `caller`."""
    token = _caller.set(caller)
    try:
        yield
    finally:
        _caller.reset(token)


class FlowProgress:
    """Publishes each stage's share and the last gaps, and forwards everything to another watcher.

    Training's share is the relative gap's progress from its first value to `tol` on a logarithmic scale,
    since the number of rounds is unknown beforehand.
    """

    def __init__(self, publish: Publish, tol: float | None = None, also: Progress | None = None) -> None:
        self._put = publish
        self._tol = tol
        self._also = also
        self._stage, self._total, self._done = "", 0, 0
        self._first_gap: float | None = None
        self._share = 0.0
        self._left = ""
        self._gaps: deque[Mapping[str, Any]] = deque(maxlen=GAPS_SHOWN)
        self._published = -math.inf

    def begin(self, stage: str, total: int | None = None, unit: str = "") -> None:
        """Begin a stage; the previous one is shown where it ended."""
        self.end()
        self._stage, self._total, self._done = stage, total or 0, 0
        self._share, self._first_gap, self._left = 0.0, None, ""
        self._gaps.clear()
        self._publish()
        if self._also is not None:
            self._also.begin(stage, total, unit)

    def advance(self, amount: int = 1) -> None:
        """Count units of the stage."""
        self._done += amount
        if self._stage != "train" and self._total:
            self._share = self._done / self._total
        self._publish_now_and_then()
        if self._also is not None:
            self._also.advance(amount)

    def note(self, facts: Mapping[str, Any]) -> None:
        """Publish a round's record; other facts are only forwarded."""
        if "relative_gap" in facts:
            # The final gap of a training belongs to no round.
            if "round" in facts:
                self._gaps.append(facts)
            # Without a convex loss there is no gap; the gradient falls instead.
            stationarity = facts.get("stationarity")
            gap = facts["relative_gap"] if stationarity is None else stationarity
            self._share = max(self._share, self._gap_share(gap))
            self._left = time_text(facts.get("left"))
            self._publish_now_and_then()
        if self._also is not None:
            self._also.note(facts)

    def end(self) -> None:
        """Show the last stage where it ended."""
        self._left = ""
        self._publish()

    def _gap_share(self, gap: float | None) -> float:
        if self._tol is None or gap is None or not math.isfinite(gap):
            return 0.0
        if gap <= self._tol:
            return 1.0
        if self._first_gap is None:
            self._first_gap = gap
        return max(0.0, math.log(self._first_gap / gap) / math.log(self._first_gap / self._tol))

    def _publish_now_and_then(self) -> None:
        if time.monotonic() - self._published >= PUBLISH_SECONDS:
            self._publish()

    def _publish(self) -> None:
        self._published = time.monotonic()
        if not self._stage:
            return
        if self._total:
            meaning = "share of the work done"
            if self._stage == "train":
                meaning = "from the first relative gap to the tolerance, on a logarithmic scale"
            share = Entry("progress", f"{self._stage}: {meaning}{self._left}", 100.0 * self._share)
            self._put(artifact_key(f"{self._stage} progress"), share)
        if self._gaps:
            rows = [{name: row.get(name) for name in GAP_COLUMNS} for row in self._gaps]
            self._put("gaps", Entry("table", "The last rounds and their duality gaps", rows))


def artifact_key(name: str) -> str:
    """Return a name in Prefect's alphabet of keys: lower case, digits and dashes."""
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")


@dataclass
class Watch:
    """What a flow passes to its task, and where it shows the outcome."""

    publish: Publish
    progress: FlowProgress
    caller: Caller = field(default_factory=Caller)

    def finish(self, result: Result, summary: str, report: str | None = None) -> Result:
        """Show the end, with a link to any report, and return `result`."""
        self.caller.finished, self.caller.result = True, result
        self.progress.end()
        begin(self.caller.progress, "report to Prefect's server")
        self.publish("summary", Entry("markdown", "Outcome of the run", summary))
        if report is not None:
            self.publish("report", Entry("markdown", "The report", f"[{report}]({report_link(report)})"))
        return result


def report_link(place: str) -> str:
    """Return a link for a URL or a local path."""
    return place if "://" in place else Path(place).resolve().as_uri()


@contextmanager
def watched(tol: float | None = None, store: str | None = None) -> Iterator[Watch]:
    """Watch a flow's body: progress, artifacts, log lines and outcome; link `store`'s dashboard."""
    caller, context = current_caller(), FlowRunContext.get()
    run = None if context is None else context.flow_run
    values = LatestValues(poster(None if run is None else run.id), interval=POST_SECONDS)
    with kept_lines(APILogHandler()):
        try:
            if store is not None:
                values.publish("dashboard", dashboard_entry(store))
            yield Watch(values.publish, FlowProgress(values.publish, tol, caller.progress), caller)
        except BaseException as error:
            caller.error = error
            raise
        finally:
            values.close(catch_up_seconds())


def cancelled_by_signals(function: Callable[Inputs, Result]) -> Callable[Inputs, Result]:
    """Return a flow's function whose run SIGTERM and Ctrl-C cancel; Prefect's handler would crash it."""

    @wraps(function)
    def call(*arguments: Inputs.args, **options: Inputs.kwargs) -> Result:
        try:
            with terminating():
                return function(*arguments, **options)
        except (InterruptedRunError, KeyboardInterrupt) as error:
            if not is_stop(error):
                raise
            return cast("Result", Cancelled(message=str(error) or "stopped by Ctrl-C"))

    # Prefect would look for the types of parameters in this module.
    vars(call)["__signature__"] = signature(function, eval_str=True)
    return call


logger = logging.getLogger(__name__)

POST_SECONDS, LONGEST_PAUSE = 2.0, 30.0
DASHBOARD_URL = "TOPLINE_DASHBOARD_URL"


@dataclass(frozen=True)
class Entry:
    """Content of an artifact: a percentage, a list of rows (one dict each) or a Markdown text."""

    kind: Literal["progress", "table", "markdown"]
    description: str
    data: Any


Post = Callable[[Mapping[str, Entry]], None]
Publish = Callable[[str, Entry], None]


class LatestValues:
    """Holds the latest entry of each key, and posts changed ones every `interval` seconds.

    `post` may be slow; after a failure of Prefect's client it is retried, with pauses that double up to
    `LONGEST_PAUSE` seconds.  `publish` returns at once and is thread-safe.
    """

    def __init__(
        self, post: Post, *, interval: float = POST_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._post, self._interval, self._clock = post, interval, clock
        self._lock = threading.Lock()
        self._new: dict[str, Entry] = {}
        self._closing, self._give_up_at = threading.Event(), math.inf
        # Prefect keeps settings and current run in context variables, which a new thread lacks.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._work,), name="topline-artifacts", daemon=True
        )
        self._thread.start()

    def publish(self, key: str, entry: Entry) -> None:
        """Replace the entry of `key`."""
        with self._lock:
            self._new[key] = entry

    def close(self, deadline: float) -> bool:
        """Post the rest within `deadline` seconds; return False, with a warning, if some remains."""
        self._give_up_at = self._clock() + deadline
        self._closing.set()
        self._thread.join(deadline)
        posted = not self._thread.is_alive() and not self._new
        if not posted:
            logger.warning(
                "The last progress artifacts did not reach Prefect's server within %g s.", deadline
            )
        return posted

    def _work(self) -> None:
        pause = self._interval
        while True:
            closing = self._closing.is_set()
            posted = self._posted()
            if closing and (posted or self._clock() >= self._give_up_at):
                return
            pause = self._interval if posted else min(2 * pause, LONGEST_PAUSE)
            if closing:
                # Only failed entries are left: retry soon, until the deadline.
                time.sleep(min(0.5, self._interval))
            else:
                self._closing.wait(pause)

    def _posted(self) -> bool:
        with self._lock:
            new = dict(self._new)
        try:
            if new:
                self._post(new)
        except (*UNREACHABLE, OSError) as error:
            logger.debug("Artifacts were not posted: %s", error)
            return False
        with self._lock:
            self._new = {key: entry for key, entry in self._new.items() if new.get(key) is not entry}
        return True


def poster(flow_run_id: UUID | None) -> Post:
    """Return what creates one artifact per key for a flow run, and then updates it."""
    made: dict[str, UUID] = {}

    def post(new: Mapping[str, Entry]) -> None:
        with get_client(sync_client=True) as client:
            for key, entry in new.items():
                data, about = artifact_data(entry), entry.description
                if key in made:
                    client.update_artifact(made[key], ArtifactUpdate(data=data, description=about))
                else:
                    artifact = ArtifactCreate(
                        key=key, type=entry.kind, description=about, data=data, flow_run_id=flow_run_id
                    )
                    made[key] = client.create_artifact(artifact).id

    return post


def artifact_data(entry: Entry) -> Any:
    """Return the content in the form that Prefect's pages expect for its kind of artifact."""
    match entry.kind:
        case "progress":
            return min(max(float(entry.data), 0.0), 100.0)
        case "table":
            return json.dumps(
                [{name: _printable(value) for name, value in row.items()} for row in entry.data]
            )
        case "markdown":
            return str(entry.data)


def dashboard_entry(store: str) -> Entry:
    """Return a link to the dashboard at TOPLINE_DASHBOARD_URL, or say how to serve the store's."""
    address = masked(os.environ.get(DASHBOARD_URL, ""))
    if urlsplit(address).scheme in ("http", "https"):
        said = f"[{address}]({address}) follows the run"
    else:
        said = f"`topline dashboard --store {store.replace(chr(96), '')}` follows the run"
    return Entry("markdown", "The dashboard of runs and models", f"{said}, and shows it afterwards.")


def _printable(value: Any) -> Any:
    """Replace numbers unknown to JSON by their names, and round others to six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    return value


def catch_up_seconds() -> float:
    """Return how long a run's end waits for its last artifacts: one and a half requests.

    The run's final state goes to the same server.  With SQLite a request may wait a minute for a lock,
    Prefect's own limit; the command line shortens it.
    """
    return 1.5 * float(PREFECT_API_REQUEST_TIMEOUT.value())
