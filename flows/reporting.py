"""Turn a job's progress into the content of a flow run's page: shares, a table of gaps, a summary."""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from prefect.logging.handlers import APILogHandler
from prefect.states import Cancelled

from topline.flows.artifacts import Entry, Publish, dashboard_entry, posted_artifacts
from topline.pipeline.errors import InterruptedRunError, is_stop
from topline.pipeline.interrupts import terminating
from topline.pipeline.log import kept_lines
from topline.pipeline.progress import Progress, begin
from topline.pipeline.telemetry import time_text

GAPS_SHOWN = 20
GAP_COLUMNS = ("round", "seconds", "primal", "dual", "gap", "relative_gap", "step")
PUBLISH_SECONDS = 0.25

Inputs = ParamSpec("Inputs")
Result = TypeVar("Result")


@dataclass
class Caller:
    """The caller of a flow in this process: its progress display, and the flow's outcome.

    A server that dies at the end must not cost the caller a stored model: `result` and `error` are set before
    Prefect reports them.
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
            described = f"{self._stage}: {describe_share(self._stage)}{self._left}"
            share = Entry("progress", described, 100.0 * self._share)
            self._put(artifact_key(f"{self._stage} progress"), share)
        if self._gaps:
            rows = [{name: row.get(name) for name in GAP_COLUMNS} for row in self._gaps]
            self._put("gaps", Entry("table", "The last rounds and their duality gaps", rows))


def artifact_key(name: str) -> str:
    """Return a name in Prefect's alphabet of keys: lower case, digits and dashes."""
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")


def describe_share(stage: str) -> str:
    """Return what a stage's share is a share of."""
    if stage == "train":
        return "from the first relative gap to the tolerance, on a logarithmic scale"
    return "share of the work done"


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
    """Watch a flow's body: progress for its task, artifacts and log lines on the server, its outcome.

    For training on `store`, add a link to the dashboard.
    """
    caller = current_caller()
    with kept_lines(APILogHandler()), posted_artifacts() as values:
        if store is not None:
            values.publish("dashboard", dashboard_entry(store))
        try:
            yield Watch(values.publish, FlowProgress(values.publish, tol, caller.progress), caller)
        except BaseException as error:
            caller.error = error
            raise


def cancelled_by_signals(function: Callable[Inputs, Result]) -> Callable[Inputs, Result]:
    """Return a flow's function whose run is cancelled by SIGTERM and Ctrl-C, in words, and does not fail.

    Prefect's own handler of SIGTERM raises even in compiled code, and makes the run crashed.
    """

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
