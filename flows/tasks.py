"""Pipeline functions as Prefect tasks: one line each, no logic.

A task is a whole step: its work is spread over Dask inside the pipeline.  A round of training is never a
task, for an empty one costs as much as a round.  Results are references to what is stored and stay in
memory: nothing is pickled, and nothing is taken from a cache that the store's own ids do not prove.
"""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun

from topline.pipeline.errors import ClusterError
from topline.pipeline.evaluation import evaluate
from topline.pipeline.ingest import extract
from topline.pipeline.jobs import retrain, run
from topline.pipeline.sweep import sweep
from topline.pipeline.training import train
from topline.storage.errors import AccessError

RETRY_DELAYS = [10.0, 60.0]

# A store or a cluster that does not answer may answer in a minute.  Bad images, labels, options or bytes
# stay bad, and an interrupted run has to be resumed by the command that its message names.
TRANSIENT = (ClusterError, AccessError, ConnectionError, TimeoutError)


def is_transient(error: BaseException) -> bool:
    """Return whether the same call may succeed later; a refused permission is final."""
    refused = isinstance(error, PermissionError) or isinstance(error.__cause__, PermissionError)
    return isinstance(error, TRANSIENT) and not refused


def retry_if_transient(_task: object, _run: TaskRun, state: State[Any]) -> bool:
    """Return whether Prefect is to try a failed task again, judged by the error that it raised."""
    try:
        state.result()
    except Exception as error:  # noqa: BLE001  whatever the function raised is judged here
        return is_transient(error)
    return False


plain = task(cache_policy=NO_CACHE, persist_result=False, tags={"topline"})

# Repeating these is safe: what is stored already is found and not made again.
repeatable = task(
    cache_policy=NO_CACHE,
    persist_result=False,
    tags={"topline"},
    retries=len(RETRY_DELAYS),
    retry_delay_seconds=RETRY_DELAYS,
    retry_condition_fn=retry_if_transient,
)

extract_images = repeatable(extract)
train_model = plain(train)
sweep_grid = plain(sweep)
evaluate_model = repeatable(evaluate)
run_job = repeatable(run)
retrain_store = repeatable(retrain)
