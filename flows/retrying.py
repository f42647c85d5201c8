"""Which failures are worth a second try."""

from __future__ import annotations

from typing import Any

from prefect.client.schemas.objects import State, TaskRun

from topline.pipeline.errors import ClusterError
from topline.storage.errors import AccessError

# A store or a cluster that does not answer may answer in a minute.  Bad images, labels, options or bytes
# stay bad, and an interrupted run has to be resumed by the command that its message names.
TRANSIENT = (ClusterError, AccessError, ConnectionError, TimeoutError)


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed later; being refused permission is for good."""
    refused = isinstance(error, PermissionError) or isinstance(error.__cause__, PermissionError)
    return isinstance(error, TRANSIENT) and not refused


def retry_if_transient(_task: object, _run: TaskRun, state: State[Any]) -> bool:
    """Prefect's question after a failed try, answered by the error that the function raised."""
    try:
        state.result()
    except Exception as error:  # noqa: BLE001  whatever the function raised is judged here
        return is_transient(error)
    return False
