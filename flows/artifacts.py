"""A flow run's latest values as Prefect artifacts: a progress bar, a table of gaps, a link and a summary.

Nothing here is called from the path that trains: `posted_artifacts` starts a thread of its own, with a
client of its own, and leaves it behind if the server is gone.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from urllib.parse import urlsplit
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_API_REQUEST_TIMEOUT

from topline.flows.latest_values import Entry, Forwarder, LatestValues
from topline.storage.stores import masked

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
