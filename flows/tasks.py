"""Pipeline functions as Prefect tasks, and the events and assets that they emit: no logic.

A task is a whole step: its work is spread over Dask inside the pipeline.  A round of training is never a
task, since an empty one costs as much as a round.  Results are references to what is stored and stay in
memory: nothing is pickled, and nothing is taken from a cache that the store's own ids do not prove.

A decision of the registry is an event, for automations, and what a step made is an asset.  Its id is known
only at the end of the step, so assets are declared within its task and not by a decorator.  Prefect then
emits `prefect.asset.materialization.succeeded`, with what the asset is made of as related resources.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar, cast

import httpx
from prefect import Task
from prefect.assets import Asset, AssetProperties
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.context import AssetContext
from prefect.events import emit_event
from prefect.runtime import task_run
from prefect.types.names import MAX_ASSET_KEY_LENGTH, RESTRICTED_ASSET_CHARACTERS

from topline.pipeline.certification import certify
from topline.pipeline.errors import ClusterError, InterruptedRunError
from topline.pipeline.evaluation.measurement import evaluate
from topline.pipeline.ingest import ExtractResult, extract
from topline.pipeline.jobs import Steps
from topline.pipeline.options import ClusterConfig, TrainConfig
from topline.pipeline.progress import Progress
from topline.pipeline.registry import Weighing, promote_by_rule
from topline.pipeline.report import write_report
from topline.pipeline.sweep import sweep
from topline.pipeline.training import Fitted, fit, resuming
from topline.storage.errors import AccessError
from topline.storage.stores import parse_url, split_url

logger = logging.getLogger(__name__)

SCHEME: Final = "topline://"
PROMOTED, KEPT = "topline.model.promoted", "topline.model.kept"


def model_decided(model_url: str, weighed: Weighing) -> None:
    """Emit the event of a promotion or refusal, of the resource `topline.model.URL`, with its evidence."""
    promoted = weighed.decision.promote
    emit_event(
        PROMOTED if promoted else KEPT,
        resource={
            "prefect.resource.id": f"topline.model.{model_url}",
            "prefect.resource.name": model_url.rpartition("/")[2],
        },
        payload={
            "model": model_url,
            "champion": weighed.standing.champion,
            "champion_before": weighed.champion,
            "reasons": list(weighed.decision.reasons),
            "evidence": weighed.evidence.to_dict(),
        },
    )


def asset_of(store: str, folder: str, name: str) -> Asset:
    """Return the asset of a record: topline://PATH/datasets/d0001, in a bucket topline://s3/BUCKET/PATH/...

    What Prefect forbids in a key stands as "=" and two hexadecimal digits; a store whose address is too long
    for a key is named by its digest.
    """
    root = str(parse_url(store))
    key = f"{SCHEME}{_escaped(root.replace('://', '/', 1))}/{folder}/{name}"
    if len(key) > MAX_ASSET_KEY_LENGTH:
        key = f"{SCHEME}{hashlib.sha256(root.encode()).hexdigest()}/{folder}/{name}"
    return Asset(key=key, properties=AssetProperties(name=f"{name} of {root.rpartition('/')[2]}"))


def champion_chosen(model_url: str, weighed: Weighing) -> None:
    """Declare the champion that the current task has promoted, if it has."""
    if weighed.decision.promote:
        store, model = split_url(model_url, "models")
        facts = {"model": model_url, "before": weighed.champion, "reasons": list(weighed.decision.reasons)}
        _materialized(asset_of(store, "models", "champion"), asset_of(store, "models", model), facts)


def _escaped(text: str) -> str:
    """Return text in characters that a key may have, different for different texts."""
    forbidden = {*RESTRICTED_ASSET_CHARACTERS, "="}
    return "".join(f"={ord(c):02x}" if c in forbidden else c for c in text)


def _materialized(made: Asset, of: Asset | None, facts: dict[str, Any]) -> None:
    """Add an asset to those of the current task; do nothing outside of a task."""
    context = AssetContext.get()
    if context is None:
        return
    context.downstream_assets.add(made)
    if of is not None:
        context.direct_asset_dependencies.add(of)
    context.add_asset_metadata(made.key, facts)
    context.update_tracked_assets()


P = ParamSpec("P")
R = TypeVar("R")

RETRY_DELAYS: Final = [10.0, 60.0]

# A store or a cluster that does not answer may answer in a minute; bad images, labels and options stay bad.
TRANSIENT = (ClusterError, AccessError, ConnectionError, TimeoutError)


def is_transient(error: BaseException) -> bool:
    """Return whether the same call may succeed later; an interrupted run is judged by its cause."""
    if isinstance(error, InterruptedRunError) and error.__cause__ is not None:
        return is_transient(error.__cause__)
    refused = isinstance(error, PermissionError) or isinstance(error.__cause__, PermissionError)
    return isinstance(error, TRANSIENT) and not refused


def retry_if_transient(_task: object, _run: TaskRun, state: State[Any]) -> bool:
    """Return whether Prefect should retry a failed task, judged by the error that it raised."""
    try:
        state.result()
    except Exception as error:  # noqa: BLE001  whatever the function raised is judged here
        return is_transient(error)
    return False


#: What a task raises if its server is lost, besides the errors of its function.
_SERVER_LOST = (httpx.HTTPError, ConcurrencySlotAcquisitionError, RuntimeError)
_outcome: ContextVar[dict[str, Any] | None] = ContextVar("topline_outcome", default=None)


class SteadyTask(Task[P, R]):
    """A task whose outcome is its function's own, even if the server is lost meanwhile."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Run the task; if the server fails it, return what the function returned, or call it now."""
        outcome: dict[str, Any] = {}
        token = _outcome.set(outcome)
        try:
            return super().__call__(*arguments, **options)
        except _SERVER_LOST as error:
            if outcome.get("error") is error:
                raise
            logger.warning("Prefect's server does not record the step %s: %s", self.name, error)
            if "error" in outcome:
                raise outcome["error"] from None
            return outcome["result"] if "result" in outcome else self.fn(*arguments, **options)
        finally:
            _outcome.reset(token)


def _with_recorded_outcome(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function, which also records its outcome for the task that calls it."""

    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        outcome = _outcome.get()
        found = {} if outcome is None else outcome
        found.clear()
        try:
            found["result"] = function(*arguments, **options)
        except Exception as error:
            found["error"] = error
            raise
        return cast("R", found["result"])

    return call


def repeatable(function: Callable[P, R], name: str = "", *tags: str) -> Task[P, R]:
    """Return a task of a function that is safe to repeat; its tags, beside "topline", are for limits."""
    return SteadyTask(
        _with_recorded_outcome(function),
        name=name or None,
        cache_policy=NO_CACHE,
        persist_result=False,
        tags={"topline", *tags},
        retries=len(RETRY_DELAYS),
        retry_delay_seconds=RETRY_DELAYS,
        retry_condition_fn=retry_if_transient,
    )


@wraps(extract)
def extract_dataset(*arguments: Any, **options: Any) -> ExtractResult:
    """Extract, and declare the dataset as an asset unless it was there already."""
    result = extract(*arguments, **options)
    if not result.reused:
        facts = {"rows": result.n, "features": result.d, "classes": result.m, "rows_of_splits": result.counts}
        _materialized(asset_of(result.store, "datasets", result.dataset), None, facts)
    return result


@wraps(fit)
def fit_or_resume(
    config: TrainConfig,
    cluster: ClusterConfig | None = None,
    progress: Progress | None = None,
    client: Any = None,
) -> Fitted:
    """Train, on a retry from the last checkpoint of the lost run, and declare the model as an asset."""
    again = (task_run.run_count or 0) > 1
    fitted = fit(resuming(config) if again else config, cluster, progress, client)
    store, dataset = fitted.run.plan.store.url, fitted.run.plan.rows.dataset.info.id
    model = asset_of(store, "models", split_url(fitted.model, "models")[1])
    facts = {"run": fitted.run.id, "status": fitted.result.status.name, "passes": fitted.result.passes}
    _materialized(model, asset_of(store, "datasets", dataset), facts)
    return fitted


@wraps(promote_by_rule)
def decide(model_url: str, *arguments: Any, **options: Any) -> Weighing:
    """Weigh a challenger, emit the event of the decision, and declare a new champion as an asset."""
    weighed = promote_by_rule(model_url, *arguments, **options)
    model_decided(model_url, weighed)
    champion_chosen(model_url, weighed)
    return weighed


fit_model = repeatable(fit_or_resume, "train", "topline-train")
sweep_grid = repeatable(sweep, "sweep", "topline-train")
STEPS = Steps(
    extract=repeatable(extract_dataset, "extract", "topline-extract"),
    fit=fit_model,
    certify=repeatable(certify, "certify"),
    evaluate=repeatable(evaluate, "evaluate"),
    decide=repeatable(decide, "decide"),
    report=repeatable(write_report, "report"),
)
