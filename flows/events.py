"""What steps tell Prefect: what the registry decided, for automations, and what was made, as assets.

The ids of what is made are known when a step ends, so that assets are declared from within its task and not
by a decorator.  Prefect then emits `prefect.asset.materialization.succeeded`, with what the asset is made of
as related.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from prefect.assets import Asset, AssetProperties
from prefect.context import AssetContext
from prefect.events import emit_event
from prefect.types.names import MAX_ASSET_KEY_LENGTH, RESTRICTED_ASSET_CHARACTERS

from topline.pipeline.ingest import ExtractResult
from topline.pipeline.registry import Weighing
from topline.pipeline.training import Fitted
from topline.storage.stores import parse_url, split_url

SCHEME: Final = "topline://"
PROMOTED, KEPT = "topline.model.promoted", "topline.model.kept"


def model_decided(model_url: str, weighed: Weighing) -> None:
    """Emit the event that a model was promoted, or kept out.

    Its resource is "topline.model.URL", so that an automation may match one store by
    `topline.model.URL-OF-THE-STORE*`; the payload has champion, reasons and evidence.
    """
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
    key = f"{SCHEME}{_plain(root.replace('://', '/', 1))}/{folder}/{name}"
    if len(key) > MAX_ASSET_KEY_LENGTH:
        key = f"{SCHEME}{hashlib.sha256(root.encode()).hexdigest()}/{folder}/{name}"
    return Asset(key=key, properties=AssetProperties(name=f"{name} of {root.rpartition('/')[2]}"))


def dataset_extracted(result: ExtractResult) -> None:
    """Declare the dataset that the current task has made; one that was there already is nothing new."""
    if not result.reused:
        facts = {"rows": result.n, "features": result.d, "classes": result.m, "rows_of_splits": result.counts}
        _materialized(asset_of(result.store, "datasets", result.dataset), None, facts)


def model_trained(fitted: Fitted) -> None:
    """Declare the model that the current task has published, made of its dataset."""
    store, dataset = fitted.run.plan.store.url, fitted.run.plan.rows.dataset.info.id
    model = asset_of(store, "models", split_url(fitted.model, "models")[1])
    facts = {"run": fitted.run.id, "status": fitted.result.status.name, "passes": fitted.result.passes}
    _materialized(model, asset_of(store, "datasets", dataset), facts)


def champion_chosen(model_url: str, weighed: Weighing) -> None:
    """Declare the champion that the current task has promoted; one that was kept is nothing new."""
    if weighed.decision.promote:
        store, model = split_url(model_url, "models")
        facts = {"model": model_url, "before": weighed.champion, "reasons": list(weighed.decision.reasons)}
        _materialized(asset_of(store, "models", "champion"), asset_of(store, "models", model), facts)


def _plain(text: str) -> str:
    """Return text in characters that a key may have, different for different texts."""
    forbidden = {*RESTRICTED_ASSET_CHARACTERS, "="}
    return "".join(f"={ord(c):02x}" if c in forbidden else c for c in text)


def _materialized(made: Asset, of: Asset | None, facts: dict[str, Any]) -> None:
    """Add to what Prefect tells of the current task once it has ended; outside of one nobody is told."""
    context = AssetContext.get()
    if context is None:
        return
    context.downstream_assets.add(made)
    if of is not None:
        context.direct_asset_dependencies.add(of)
    context.add_asset_metadata(made.key, facts)
    context.update_tracked_assets()
