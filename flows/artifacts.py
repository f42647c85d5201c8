"""A flow run's latest values as Prefect artifacts: a progress bar, a table of gaps, a link and a summary.

Training never waits for them: `posted_artifacts` starts its own thread, and abandons it if the server is
gone. One entry is held per key, so memory is bounded: a slow server skips states, but never the last one.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.context import FlowRunContext
from prefect.settings import PREFECT_API_REQUEST_TIMEOUT

from topline.flows.following import UNREACHABLE
from topline.storage.stores import masked

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
            rows = ({name: _printable(value) for name, value in row.items()} for row in entry.data)
            return json.dumps(list(rows))
        case "markdown":
            return str(entry.data)


def dashboard_entry(store: str) -> Entry:
    """Return a link to the store's dashboard, or say how to serve it.

    TOPLINE_DASHBOARD_URL is where readers of the flow run find `topline dashboard`.
    """
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


@contextmanager
def posted_artifacts() -> Iterator[LatestValues]:
    """Post published entries as artifacts of the current flow run, without delaying training.

    On exit, the rest is posted within `catch_up_seconds()`, or given up with one warning.
    """
    context = FlowRunContext.get()
    run = None if context is None else context.flow_run
    values = LatestValues(poster(None if run is None else run.id), interval=POST_SECONDS)
    try:
        yield values
    finally:
        values.close(catch_up_seconds())
