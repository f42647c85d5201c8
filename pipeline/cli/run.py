"""`topline run`: the whole job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topline.pipeline.cli.command import Call, Outcome
from topline.pipeline.cli.table import counted, facts, following, metrics_line
from topline.pipeline.cli.train import judge, training_facts
from topline.pipeline.options import (
    ClusterConfig,
    EvaluateConfig,
    ExtractConfig,
    JobOptions,
    RunConfig,
    SearchConfig,
    TrainConfig,
)

if TYPE_CHECKING:
    from topline.pipeline.jobs import JobResult


def run(call: Call) -> Outcome:
    """Do the whole job: from images (or scikit-learn's digits) to a certified model and its report."""
    from topline.pipeline.jobs import run as run_job

    options, images, training = call.config(JobOptions), call.config(ExtractConfig), call.config(TrainConfig)
    store = options.store
    if not call.chose("run", "store"):
        # A file written for the single steps names the store in their sections.
        store = images.store if call.chose("extract", "store") else store
        store = training.store if call.chose("train", "store") else store
    config = RunConfig(
        store=store,
        report=options.report,
        training_sizes=options.training_sizes,
        extract=images,
        search=call.config(SearchConfig),
        train=training,
        evaluate=call.config(EvaluateConfig),
    )
    result: JobResult = call.run("run", run_job, config=config, cluster=call.config(ClusterConfig))
    code, warnings = judge(result.train, call, config.train.tol)
    no_better = getattr(result.evaluation, "no_better", None)
    return Outcome(result.to_dict(), summary(result), [*warnings, *([no_better] if no_better else [])], code)


def summary(result: JobResult) -> list[str]:
    """Return the lines that are printed at the end."""
    from topline.pipeline.evaluation import MultilabelEvaluation
    from topline.pipeline.ingest import names_line

    used = {split: count for split, count in result.counts.items() if split != "rejected"}
    left_out = {status: count for status, count in result.statuses.items() if status != "ok"}
    shown = {"images": f"{result.images}: {counted(used)}"}
    if any(left_out.values()):
        shown["left out"] = f"{counted(left_out)}, each with its reason in the report"
    shown["classes"] = names_line(result.class_names)
    if result.features is not None:
        shown["features"] = result.features
    shown |= training_facts(result.train)
    if result.reused:
        shown["training"] += " (made by an earlier run, not repeated)"
    if isinstance(result.evaluation, MultilabelEvaluation):
        known = result.evaluation.measured()
        shown |= {metric.label: metric.text(value) for metric, value in known if metric.headline}
        shown["threshold"] = result.evaluation.threshold.text()
    elif result.evaluation is not None:
        split = result.evaluation.split
        shown["accuracy"] = f"{metrics_line(result.evaluation.to_dict())}   ({split} images, 95% intervals)"
    shown["report"] = result.report
    model = result.train.model
    return [
        *facts(shown),
        *following(
            ("topline", "predict", model, "--images", "FOLDER", "--output", "predictions.csv"),
            ("topline", "export", model, "--format", "onnx", "--output", "model.onnx"),
            ("topline", "models", "list", "--store", result.store),
        ),
    ]
