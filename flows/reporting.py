"""Turn a job's progress into what a flow run's page shows: shares, a table of gaps, a summary."""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from prefect.logging.handlers import APILogHandler

from topline.flows.artifacts import Entry, Publish, dashboard_entry, posted_artifacts
from topline.pipeline.log import kept_lines
from topline.pipeline.progress import Progress, begin
from topline.pipeline.telemetry import time_text

GAPS_SHOWN = 20
GAP_COLUMNS = ("round", "seconds", "primal", "dual", "gap", "relative_gap", "step")
PUBLISH_SECONDS = 0.25

Result = TypeVar("Result")


@dataclass
class Caller:
    """The caller of a flow in this process: its progress display, and the outcome of the flow's body.

    A server that dies at the end must not cost the caller a model that is stored already: `result` and
    `error` are known before Prefect reports them.
    """

    progress: Progress | None = None
    finished: bool = False
    result: Any = None
    error: Exception | None = None


_caller: ContextVar[Caller | None] = ContextVar("topline_caller", default=None)


def current_caller() -> Caller:
    """Return the caller of the flows of this context; without one, what is noted is lost."""
    return _caller.get() or Caller()


@contextmanager
def called_by(caller: Caller) -> Iterator[None]:
    """Let the flows that are started inside report to `caller` too."""
    token = _caller.set(caller)
    try:
        yield
    finally:
        _caller.reset(token)


class FlowProgress:
    """A watcher that publishes each stage's share and the last gaps, and passes everything on to another one.

    Training's share is how far the relative gap has come on a logarithmic scale from its first value to
    `tol`, for the gap falls by factors and the number of rounds is not known beforehand.
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
        """Begin a stage; the one before is shown at the end it reached."""
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
        """Take a round's record; facts of another kind are passed on only."""
        if "relative_gap" in facts:
            # The result's gap, which ends a training, is of no round.
            if "round" in facts:
                self._gaps.append(facts)
            # Where the loss is not convex there is no gap, and the gradient is what falls.
            stationarity = facts.get("stationarity")
            gap = facts["relative_gap"] if stationarity is None else stationarity
            self._share = max(self._share, self._gap_share(gap))
            self._left = time_text(facts.get("left"))
            self._publish_now_and_then()
        if self._also is not None:
            self._also.note(facts)

    def end(self) -> None:
        """Show the last stage at the end it reached."""
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
    """Return a name in the letters that Prefect allows in keys: lower case, digits and dashes."""
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")


def describe_share(stage: str) -> str:
    """Say what the share of a stage is a share of."""
    if stage == "train":
        return "from the first relative gap to the tolerance, on a logarithmic scale"
    return "share of the work done"


@dataclass
class Watch:
    """What a flow hands to its task, and where it shows the outcome."""

    publish: Publish
    progress: FlowProgress
    caller: Caller = field(default_factory=Caller)

    def finish(self, result: Result, summary: str, report: str | None = None) -> Result:
        """Show the end, with a link to the report where there is one, and return `result`."""
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

    Where it trains, on `store`, there is a link to the dashboard.
    """
    caller = current_caller()
    with kept_lines(APILogHandler()), posted_artifacts() as values:
        if store is not None:
            values.publish("dashboard", dashboard_entry(store))
        try:
            yield Watch(values.publish, FlowProgress(values.publish, tol, caller.progress), caller)
        except Exception as error:
            caller.error = error
            raise
