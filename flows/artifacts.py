"""A flow run's latest values as Prefect artifacts: a progress bar, a table of gaps, a link and a summary.

Nothing here is called from the path that trains: `posted_artifacts` starts a thread of its own, with a
client of its own, and leaves it behind if the server is gone.  One entry is held per key, whatever the number
of updates, so memory is bounded by construction: a reader that falls behind skips states and never the last
one.
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
from typing import Any, ClassVar, Literal, Protocol
from urllib.parse import urlsplit
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_API_REQUEST_TIMEOUT

from topline.storage.stores import masked

logger = logging.getLogger(__name__)

Kind = Literal["progress", "table", "markdown"]


@dataclass(frozen=True)
class Entry:
    """One artifact's content: a percentage, a list of rows (one dict each) or a Markdown text."""

    kind: Kind
    description: str
    data: Any


class LatestValues:
    """The latest entry under each key; every method returns at once and may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, tuple[int, Entry]] = {}

    def publish(self, key: str, entry: Entry) -> None:
        """Replace what was published under `key` by `entry`."""
        with self._lock:
            version = self._entries[key][0] + 1 if key in self._entries else 1
            self._entries[key] = (version, entry)

    def newer_than(self, seen: Mapping[str, int]) -> dict[str, tuple[int, Entry]]:
        """Return the entries whose version is not the one in `seen`, by key, each with its version."""
        with self._lock:
            return {key: found for key, found in self._entries.items() if seen.get(key) != found[0]}


class Receiver(Protocol):
    """A receiver of the latest values; it may be slow or fail.  All calls come from one thread."""

    recoverable: ClassVar[tuple[type[Exception], ...]]
    """Errors of `deliver` that mean "not now"."""

    def deliver(self, key: str, entry: Entry) -> None:
        """Take the latest entry of one key."""

    def close(self) -> None:
        """Close connections."""


class Forwarder:
    """A daemon thread that delivers the latest values to a receiver, at most every `interval` seconds.

    An entry that could not be delivered is tried again after a pause, which doubles up to `longest_pause`
    seconds, in the state that it then has.  The publishing side never notices.
    """

    def __init__(
        self,
        values: LatestValues,
        receiver: Receiver,
        *,
        interval: float = 2.0,
        longest_pause: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._values = values
        self._receiver = receiver
        self._interval = interval
        self._longest_pause = longest_pause
        self._clock = clock
        self._seen: dict[str, int] = {}
        self._closing = threading.Event()
        self._give_up_at = float("inf")
        # Prefect keeps its settings and the current run in context variables, which a new thread lacks.
        context = copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._deliver,), name="topline-artifacts", daemon=True
        )

    def start(self) -> None:
        """Start delivering."""
        self._thread.start()

    def close(self, deadline: float = 10.0) -> bool:
        """Deliver what is left, for at most `deadline` seconds; False and a warning if some stays."""
        self._give_up_at = self._clock() + deadline
        self._closing.set()
        self._thread.join(deadline)
        delivered = not self._thread.is_alive() and not self._values.newer_than(self._seen)
        if not delivered:
            logger.warning(
                "The last progress artifacts did not reach Prefect's server within %g s.", deadline
            )
        return delivered

    def _deliver(self) -> None:
        try:
            self._deliver_until_closed()
        finally:
            self._receiver.close()

    def _deliver_until_closed(self) -> None:
        pause = self._interval
        while True:
            closing = self._closing.is_set()
            delivered = self._deliver_newer()
            if closing and (delivered or self._clock() >= self._give_up_at):
                return
            pause = self._interval if delivered else min(2 * pause, self._longest_pause)
            if closing:
                # Only entries that failed are left: try again soon, until the deadline.
                time.sleep(min(0.5, self._interval))
            else:
                self._closing.wait(pause)

    def _deliver_newer(self) -> bool:
        for key, (version, entry) in self._values.newer_than(self._seen).items():
            try:
                self._receiver.deliver(key, entry)
            except self._receiver.recoverable as error:
                logger.debug("Artifact %s was not delivered: %s", key, error)
                return False
            self._seen[key] = version
        return True


POST_SECONDS = 2.0

DASHBOARD_URL = "TOPLINE_DASHBOARD_URL"


class ArtifactReceiver:
    """Creates one artifact a key for a flow run, and later updates it."""

    # RuntimeError is what Prefect raises where its embedded server is gone.
    recoverable: ClassVar[tuple[type[Exception], ...]] = (
        httpx.HTTPError,
        PrefectException,
        OSError,
        RuntimeError,
    )

    def __init__(self, flow_run_id: UUID | None) -> None:
        self._flow_run_id = flow_run_id
        self._artifacts: dict[str, UUID] = {}
        self._client: SyncPrefectClient | None = None

    def deliver(self, key: str, entry: Entry) -> None:
        """Create or update the artifact `key`."""
        client = self._connected()
        data = artifact_data(entry)
        if key in self._artifacts:
            update = ArtifactUpdate(data=data, description=entry.description)
            client.update_artifact(self._artifacts[key], update)
            return
        created = client.create_artifact(
            ArtifactCreate(
                key=key,
                type=entry.kind,
                description=entry.description,
                data=data,
                flow_run_id=self._flow_run_id,
            )
        )
        self._artifacts[key] = created.id

    def close(self) -> None:
        """Close the connection to the server."""
        if self._client is not None:
            self._client.__exit__(None, None, None)
            self._client = None

    def _connected(self) -> SyncPrefectClient:
        if self._client is None:
            self._client = get_client(sync_client=True).__enter__()
        return self._client


def artifact_data(entry: Entry) -> Any:
    """Return the content in the form in which Prefect's pages expect it for this kind of artifact."""
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
    """Return the link to the page of a store's runs and models, or say how it is served.

    TOPLINE_DASHBOARD_URL says where `topline dashboard` is served for the readers of the flow run.
    """
    address = masked(os.environ.get(DASHBOARD_URL, ""))
    if urlsplit(address).scheme in ("http", "https"):
        said = f"[{address}]({address}) follows the run"
    else:
        said = f"`topline dashboard --store {store.replace(chr(96), '')}` follows the run"
    return Entry("markdown", "The dashboard of runs and models", f"{said}, and shows it afterwards.")


def _printable(value: Any) -> Any:
    """Replace numbers that JSON does not know by their names, and shorten the others to six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    return value


def current_flow_run_id() -> UUID | None:
    """Return the id of the flow run that calls this, or None outside of one."""
    run = FlowRunContext.get()
    return run.flow_run.id if run is not None and run.flow_run is not None else None


def catch_up_seconds() -> float:
    """Return how long the end of a run waits for its last artifacts: one request and half of another.

    The run's last state is a request to the same server.  With SQLite behind it, one may wait a minute for a
    lock, which is also Prefect's own limit; the command line shortens that limit.
    """
    return 1.5 * float(PREFECT_API_REQUEST_TIMEOUT.value())


@contextmanager
def posted_artifacts() -> Iterator[LatestValues]:
    """Post what is published as artifacts of the current flow run, for which training never waits.

    On leaving, what is left is delivered within `catch_up_seconds()`, or given up with one warning.
    """
    values = LatestValues()
    forwarder = Forwarder(values, ArtifactReceiver(current_flow_run_id()), interval=POST_SECONDS)
    forwarder.start()
    try:
        yield values
    finally:
        forwarder.close(catch_up_seconds())
