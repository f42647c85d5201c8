"""`topline predict` and `export`: what leaves a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from topline.pipeline.cli.command import Call, Outcome
from topline.pipeline.cli.models import ModelArgument, find_model
from topline.pipeline.cli.table import facts, table
from topline.pipeline.errors import ConfigError
from topline.pipeline.options.config import ClusterConfig, PredictConfig

if TYPE_CHECKING:
    from topline.pipeline.export.publishing import ExportReport
    from topline.pipeline.prediction.of_images import PredictResult

ExportFormat = Literal["npz", "onnx", "safetensors", "sklearn"]
SUFFIXES = {"npz": ".npz", "onnx": ".onnx", "safetensors": ".safetensors", "sklearn": ".sklearn"}


def predict(call: Call, model: ModelArgument) -> Outcome:
    """Classify new images, or with --dataset the rows of a store: the best classes of each, and scores.

    A model of several labels a row predicts those that score above its threshold.
    """
    from topline.pipeline.prediction.of_images import predict as classify

    config = call.config(PredictConfig)
    if config.dataset is not None:
        return _predict_dataset(call, model, config)
    if config.store or config.output or call.chose("cluster", *ClusterConfig.model_fields):
        raise ConfigError(
            "--store, --output and --workers belong to --dataset: name a dataset, or leave them out"
        )
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
    return Outcome(found.to_dict(), table(("image", "best classes"), rows), warnings)


def _predict_dataset(call: Call, model: str, config: PredictConfig) -> Outcome:
    from topline.pipeline.prediction.decision_rule import DecisionRule
    from topline.pipeline.prediction.of_datasets import predict_dataset

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
    return Outcome(found.to_dict(), facts({**shown, **({"table": found.output} if found.output else {})}))


def export(
    call: Call,  # noqa: ARG001 - one shape for all
    model: ModelArgument,
    format: Annotated[  # noqa: A002 - the word of the command line
        ExportFormat, typer.Option("--format", help="Kind of file")
    ] = "npz",
    output: Annotated[
        Path | None,
        typer.Option("--output", help="File, or for sklearn folder, to write (default: the model's id)"),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option("--top-k", min=1, help="Best classes that the ONNX graph gives")
    ] = None,
) -> Outcome:
    """Write a model for other programs, and keep it if it predicts what we do."""
    from topline.pipeline.export.publishing import export as write

    url = find_model(model)
    path = output or Path(url.rpartition("/")[2] + SUFFIXES[format])
    found = write(url, path, format, top_k=top_k)
    lines = facts(
        {
            "model": found.model,
            "file": f"{found.path} ({found.bytes:,} bytes, {found.format})",
            "scores": f"off by {found.largest_difference:.1e} at most",
            "best classes": _agreement(found),
        }
    )
    return Outcome(found.to_dict(), lines)


def _agreement(found: ExportReport) -> str:
    if not found.dataset_rows:
        return "not compared, as the model's dataset is gone"
    tied = f", {found.tied_rows} with ties in another order" if found.tied_rows else ""
    return f"the same top-{found.top_k} in {found.dataset_rows:,} rows of the dataset{tied}"
