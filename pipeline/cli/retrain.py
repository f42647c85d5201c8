"""`topline retrain` and `serve`: a classifier that is kept fresh, once or on a schedule."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from topline.pipeline.cli.command import Call, Outcome, flow_runner
from topline.pipeline.cli.exits import SUCCESS
from topline.pipeline.cli.models import disputed_line
from topline.pipeline.cli.table import facts, following, metrics_line
from topline.pipeline.errors import ConfigError
from topline.pipeline.options import (
    ClusterConfig,
    EvaluateConfig,
    ExtractConfig,
    PromotionRule,
    PruneConfig,
    RetrainConfig,
    RetrainOptions,
    TrainConfig,
    refuse_label_sets,
)
from topline.solvers.counts import how_many

if TYPE_CHECKING:
    from topline.pipeline.jobs import RetrainResult

SECTIONS = "retrain extract train cluster promote evaluate prune"
HIDDEN = frozenset({"dataset", "resume", "certify", "start_from", "confused"})


def retrain(call: Call) -> Outcome:
    """Add new and changed images, retrain from the last model, and promote the result if the rule says so."""
    from topline.pipeline.jobs import retrain as bring_up_to_date

    config = config_of(call)
    result: RetrainResult = call.run(
        "retrain", bring_up_to_date, config=config, cluster=call.config(ClusterConfig)
    )
    return Outcome(result.to_dict(), retraining_lines(result), code=SUCCESS)


def serve(
    call: Call,
    every: Annotated[
        str, typer.Option("--every", help='Cron such as "0 2 * * *", or an interval such as 60s, 15m, 6h')
    ],
    timezone: Annotated[str, typer.Option("--timezone", help="Time zone of the cron schedule")] = "UTC",
    notify: Annotated[
        list[str] | None,
        typer.Option(
            "--notify",
            help="Address to notify of failures and decisions: https://... of a webhook or of Slack, mailto://...;"
            " may be repeated. Put addresses with secrets into TOPLINE_NOTIFY",
        ),
    ] = None,
    mlflow: Annotated[
        str,
        typer.Option(
            "--mlflow",
            help="Record decisions under this registered model of MLflow, on the server MLFLOW_TRACKING_URI",
        ),
    ] = "",
    log: Annotated[
        Path | None,
        typer.Option("--log", help="Log file, rotated, one line per event (default: STORE.serve.log)"),
    ] = None,
    keep_runs: Annotated[
        int,
        typer.Option(
            "--keep-runs",
            min=1,
            help="Runs that Prefect's own server keeps: all of the last hour, none older than 30 days",
        ),
    ] = 500,
) -> Outcome:
    """Retrain on a schedule until Ctrl-C, on its own Prefect server unless one is configured.

    Writes one line per event to standard output and to a file, as JSON with --json.
    """
    parameters = {
        "config": config_of(call),
        "cluster": call.config(ClusterConfig),
        "every": every,
        "timezone": timezone,
        "notify": notify or [],
        "mlflow": mlflow,
        "log": log,
        "as_json": call.json,
        "keep_runs": keep_runs,
        "out": call.out,
    }
    flow_runner()("serve", parameters, call.progress)
    store = call.config(RetrainOptions).store
    lines = ["the schedule has ended", *following(("topline", "status", store))]
    return Outcome({"served": every, "store": store}, lines)


def config_of(call: Call) -> RetrainConfig:
    """Return the options of a retraining, from those of its steps."""
    options, images = call.config(RetrainOptions), call.config(ExtractConfig)
    if images.images is None:
        raise ConfigError("--images is missing: name a folder with a folder for each class")
    refuse_label_sets(images)
    split = call.config(EvaluateConfig).split
    if split == "train":
        raise ConfigError("--split train cannot decide on a promotion: use held-out rows, val or test")
    return RetrainConfig(
        **options.model_dump(),
        extract=images,
        train=call.config(TrainConfig),
        promote=call.config(PromotionRule),
        retention=call.config(PruneConfig),
        split=split,
    )


def retraining_lines(result: RetrainResult) -> list[str]:
    """Return the lines that are printed at the end."""
    counts = result.changes.to_dict()
    shown = {
        "images": ", ".join(f"{count:,} {name}" for name, count in counts.items()),
        "dataset": f"{result.dataset} in {result.store}",
        "model": result.model,
    }
    if result.outcome != "unchanged":
        start = result.start
        origin = "zero" if start["from"] == "zero" else f"{start['from']} of {start['model']}"
        gap = "none" if result.relative_gap is None else f"{result.relative_gap:.2e}"
        shown["training"] = f"{how_many(result.passes, 'passes')} from {origin}, relative gap {gap}"
        if result.metrics:
            shown["accuracy"] = metrics_line(result.evaluation)
    shown["champion"] = result.champion or "none"
    if result.evidence.get("disputed"):
        shown["labels"] = disputed_line(result.evidence["disputed"]).removeprefix("labels: ")
    if result.pruned_bytes is not None:
        shown["pruned"] = f"{result.pruned_bytes:,} bytes"
    lines = [*facts(shown), "", f"{result.outcome}:", *(f"  {reason}" for reason in result.reasons)]
    if result.outcome == "kept":
        return [*lines, *following(("topline", "inspect", result.model))]
    return [*lines, *following(("topline", "status", result.store))]
