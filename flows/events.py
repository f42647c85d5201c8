"""Events for Prefect's automations: what the registry decided."""

from __future__ import annotations

from prefect.events import emit_event

from topline.pipeline.registry import Weighing

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
