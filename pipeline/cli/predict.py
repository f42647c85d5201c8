"""`topline predict`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topline.pipeline.cli.arguments import ModelArgument, find_model
from topline.pipeline.cli.command import Call, Outcome
from topline.pipeline.cli.table import facts, table
from topline.pipeline.errors import ConfigError
from topline.pipeline.options import ClusterConfig, PredictConfig

if TYPE_CHECKING:
    from topline.pipeline.prediction import PredictResult


def predict(call: Call, model: ModelArgument) -> Outcome:
    """Classify new images, or with --dataset the rows of a store.

    A model of several labels a row predicts those that score above its threshold.
    """
    from topline.pipeline.prediction import predict as classify

    config = call.config(PredictConfig)
    if config.dataset is not None:
        return _predict_dataset(call, model, config)
    if config.store or call.chose("cluster", *ClusterConfig.model_fields):
        raise ConfigError("--store and --workers belong to --dataset: name a dataset, or leave them out")
    found: PredictResult = classify(find_model(model), config, call.progress)
    rows = [
        (
            one.sample,
            "  ".join(f"{label} ({score:.3f})" for label, score in zip(one.labels, one.scores, strict=True))
            or ("none above the threshold" if one.status == "ok" else f"{one.status}: {one.error}"),
        )
        for one in found.predictions
    ]
    unreadable = found.rejected
    warnings = [f"{unreadable} of {len(rows)} images could not be read"] if unreadable else []
    lines = table(("image", "best classes"), rows)
    written = _written(found.output, found.page)
    return Outcome(found.to_dict(), [*lines, "", *facts(written)] if written else lines, warnings)


def _predict_dataset(call: Call, model: str, config: PredictConfig) -> Outcome:
    from topline.pipeline.prediction import DecisionRule, predict_dataset

    if config.images is not None:
        raise ConfigError("--images and --dataset are two things to classify: give one of them")
    found = predict_dataset(find_model(model), config, call.config(ClusterConfig), call.progress)
    without = f", {found.unclassified:,} of them rejected" if found.unclassified else ""
    speed = "stored already" if found.reused else f"{found.rows / found.seconds:,.0f} rows/s"
    shown = {
        "predictions": f"{found.predictions} ({speed})",
        "dataset": f"{found.dataset}, {found.rows:,} rows{without}",
        "classes": DecisionRule(found.top_k, found.threshold).text(),
    }
    return Outcome(found.to_dict(), facts({**shown, **_written(found.output, found.page)}))


def _written(output: str | None, page: str | None) -> dict[str, str]:
    return {name: place for name, place in (("table", output), ("page", page)) if place}
