"""`topline extract`, `import`, `train`, `certify`, `sweep` and `run`: from data to a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from topline.pipeline.cli.command import Call, ModelArgument, Outcome, find_model, measuring
from topline.pipeline.cli.table import (
    SHORT_OF_TOLERANCE,
    SUCCESS,
    counted,
    facts,
    following,
    metrics_line,
    table,
)
from topline.pipeline.errors import ConfigError
from topline.pipeline.options import (
    ClusterConfig,
    EvaluateConfig,
    ExtractConfig,
    ImportConfig,
    JobOptions,
    RunConfig,
    SearchConfig,
    SweepConfig,
    TrainConfig,
)
from topline.solvers.counts import how_many

if TYPE_CHECKING:
    from topline.pipeline.ingest import ExtractResult, ImportResult
    from topline.pipeline.jobs import JobResult
    from topline.pipeline.sweep import SweepCell, SweepResult
    from topline.pipeline.training import TrainResult
    from topline.storage.datasets import DatasetInfo


REJECTED_SHOWN = 10
#: With fewer training rows a search of loss and C hardly tells them apart.
SEARCHED_ROWS = 100


def extract(call: Call) -> Outcome:
    """Turn images into a dataset of features; run it again to continue after an interruption."""
    from topline.pipeline.ingest import extract as run_extraction

    result: ExtractResult = call.run(
        "extract", run_extraction, config=call.config(ExtractConfig), cluster=call.config(ClusterConfig)
    )
    speed = "stored already" if result.reused else f"{result.images_per_second:,.0f} images/s"
    lines = facts(
        {
            "dataset": f"{result.dataset} in {result.store} ({speed})",
            "data": f"n {result.n:,}, d {result.d:,}, m {result.m:,}",
            **_classes(result),
            "features": str(result.info.features.get("about", "made by an earlier version")),
            "rows": counted(result.counts),
            "images": counted(result.statuses),
        }
    )
    lines += [f"    rejected {path}: {reason}" for path, reason in result.rejected[:REJECTED_SHOWN]]
    more = result.statuses.get("rejected", 0) - REJECTED_SHOWN
    lines += [f"    and {more:,} more, each in the manifest"] if more > 0 else []
    return Outcome(result.to_dict(), [*lines, *_train_next(result.store, result.info)])


def import_(call: Call) -> Outcome:
    """Store existing features and labels: arrays (npy, HDF5, Zarr, ...), Parquet, CSV, ARFF, LIBSVM text."""
    from topline.pipeline.ingest import import_features

    result: ImportResult = import_features(call.config(ImportConfig), call.progress)
    again, several = " (stored already)" if result.reused else "", result.label_sets
    lines = facts(
        {
            "dataset": f"{result.dataset} in {result.store}{again}",
            "data": f"n {result.n:,}, d {result.d:,}, m {result.m:,}, {result.layout}",
            **_classes(result),
            "rows": counted(result.counts),
            **({} if several is None else {"labels": f"several a row, {several:,} distinct label sets"}),
        }
    )
    return Outcome(result.to_dict(), [*lines, *_train_next(result.store, result.info)])


def _classes(result: ExtractResult | ImportResult) -> dict[str, str]:
    from topline.pipeline.ingest import names_line

    shown = {"classes": names_line(result.info.class_names), "class sizes": result.class_sizes}
    return {name: text for name, text in shown.items() if text is not None}


def _train_next(store: str, info: DatasetInfo) -> list[str]:
    searched = ("--auto",) if info.counts.get("train", 0) >= SEARCHED_ROWS else ()
    how = searched if info.label_sets is None else ("--loss", "multilabel_hinge")
    return following(("train", "--store", store, *how))


#: What is said of a model whose optimum is no model.
COLLAPSED = (
    "W = 0 is optimal to the tolerance, so this model cannot tell the classes apart: no weights lower the K"
    " largest losses together; use a larger --average-top, or a larger --C"
)
#: What may help where the weights are 0 though all losses count.
NO_WEIGHTS = "use a larger --C, another --loss such as softmax, or features that tell the classes apart"


def train(
    call: Call,
    from_model: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="MODEL",
            help="Model to start from, with its settings and its dataset unless others are given",
        ),
    ] = None,
    without: Annotated[
        str | None,
        typer.Option(
            "--without",
            metavar="ROWS",
            help="Rows to leave out: comma-separated ids, or a file of them (one per line, or a table"
            " with sample_id)",
        ),
    ] = None,
    labels_from: Annotated[
        Path | None,
        typer.Option(
            "--labels-from",
            help="Table with sample_id and label, such as a corrected one of topline inspect; a row whose"
            " label is empty is left out",
        ),
    ] = None,
) -> Outcome:
    """Train a classifier on a stored dataset, publish and certify it.

    --auto searches loss, C and scaling before.  --resume continues an interrupted run.  --without and
    --labels-from store a version of the dataset without these rows, or with these labels, and train on it;
    with --from that takes few passes.
    """
    from topline.pipeline.jobs import train_as_asked, training_facts
    from topline.pipeline.training import already_solved

    config, search = call.config(TrainConfig), call.config(SearchConfig)
    searches = bool(search.auto) and search.searches(config)
    search.refuse_goal(searched=searches)
    if searches and from_model is not None:
        raise ConfigError(
            "--auto searches anew, and --from keeps a model's settings: leave one of the two out"
        )
    if any(given is not None for given in (from_model, without, labels_from)):
        config = _edited(config, from_model, without, labels_from)
    done = None if config.resume is None else already_solved(config, config.resume)
    cluster = call.config(ClusterConfig)
    searched = {"search": search} if searches else {}
    result: TrainResult = done or call.shown(
        lambda: call.run("train", train_as_asked, config=config, cluster=cluster, **searched)
    )
    code, warnings = judge(result, call, _tolerance(config))
    if done is not None:
        left = f"run {done.run} reached the tolerance before, and {done.model} is its model"
        warnings = [f"nothing is left to do: {left}; a smaller --tol continues", *warnings]
    after = measuring(result.model)
    if config.kernel is None:
        form = "npz" if any(name.startswith("nystroem") for name in config.transforms) else "onnx"
        after.append(("export", result.model, "--format", form, "--output", f"model.{form}"))
    return Outcome(result.to_dict(), [*facts(training_facts(result)), *following(*after)], warnings, code)


def _edited(
    config: TrainConfig, from_model: str | None, without: str | None, labels_from: Path | None
) -> TrainConfig:
    """Return the options with a model's settings and the dataset that the edits make, stored before."""
    if config.resume is not None:
        raise ConfigError(
            "--resume continues a run as it began: leave --from, --without and --labels-from out"
        )
    if from_model is not None:
        from topline.pipeline.training import settings_of_model

        config = settings_of_model(config, find_model(from_model))
    if without is None and labels_from is None:
        return config
    from topline.pipeline.ingest import Edits, edited_dataset, tell_edits
    from topline.storage.datasets import Dataset
    from topline.storage.stores import open_store

    dataset = Dataset.open(open_store(config.store), config.dataset)
    edited = edited_dataset(dataset, Edits.read(without, labels_from))
    tell_edits(dataset, Dataset(dataset.store, edited))
    return config.model_copy(update={"dataset": edited.id})


def _tolerance(config: TrainConfig) -> float:
    """Return the tolerance that a run is judged by: of a resumed one its own, unless another is given."""
    if config.resume is None or "tol" in config.model_fields_set:
        return config.tol
    from topline.storage.runs import read_run
    from topline.storage.stores import open_store

    return float(read_run(open_store(config.store), config.resume).config["tol"])


def judge(result: TrainResult, call: Call, tol: float) -> tuple[int, list[str]]:
    """Return the exit code of a training run and what must be said about it.

    Stopping at a budget that somebody chose is what was asked for, as is a gap within a loose tolerance;
    stopping at the default budget is not, nor is a model that `topline certify` calls not certified.
    """
    certificate = result.certificate
    nothing = f"W of {result.model.rpartition('/')[2]} is 0, which is no better than no model"
    if result.solved:
        said = [COLLAPSED] if result.collapsed and result.average_top is not None else []
        if result.no_weights and certificate is None and not said:
            said = [f"{nothing}; {NO_WEIGHTS}"]
        if certificate is None or certificate.certified:
            return SUCCESS, said
        why = f"{certificate.model} is not certified: {certificate.reason}"
        if certificate.no_weights and not said:
            why += f"; {NO_WEIGHTS}"
        return SUCCESS if certificate.too_loose else SHORT_OF_TOLERANCE, [why, *said]
    reached = f"the relative gap is {result.relative_gap:.2e}"
    if result.stationarity is not None:
        reached = f"the gradient fell to {result.stationarity:.2e} of its first size"
    short = f"{reached}, above the tolerance {tol:g}"
    why = f"stopped after {how_many(result.passes, 'passes')} ({result.status})"
    if result.no_weights:
        short = f"{nothing}, and {short}"
    if call.chose("train", "max_passes", "time_limit"):
        return SUCCESS, [f"{why}: {short}"]
    fix = f"--resume {result.run} --max-passes {10 * result.passes} continues, a larger --tol accepts it"
    return SHORT_OF_TOLERANCE, [f"{why}: {short}; {fix}"]


def certify(call: Call, model: ModelArgument) -> Outcome:
    """Recompute a model's primal, dual and gap from what is stored, and record them."""
    from topline.pipeline.certification import certify as recompute

    url = find_model(model)
    found = call.shown(lambda: recompute(url, call.progress))
    lines = facts(
        {
            "model": found.model,
            "primal": f"{found.primal:.10g}",
            "dual": f"{found.dual:.10g}",
            "gap": f"{found.gap:.3e}",
            "relative gap": f"{found.relative_gap:.3e}",
            "certificate": found.text,
            "agrees": "training recorded the same" if found.agrees else "training recorded other values",
        }
    )
    warnings = [] if found.certified else [f"{found.model} is not certified: {found.reason}"]
    lines += following(*measuring(url))
    return Outcome(found.to_dict(), lines, warnings, SUCCESS if found.certified else SHORT_OF_TOLERANCE)


HEAD = ("loss", "C", "accuracy", "error", "bounds", "gap", "passes", "ended", "why")


def sweep(call: Call) -> Outcome:
    """Compare C, k, losses and smoothings by cross-validation.

    --resume continues an interrupted sweep.
    """
    from topline.pipeline.jobs import training_facts
    from topline.pipeline.sweep import sweep as run_sweep

    result: SweepResult = call.run(
        "sweep", run_sweep, config=call.config(SweepConfig), cluster=call.config(ClusterConfig)
    )
    edge = f"the best C, {result.best.C:g}, lies at the edge of the grid: try a wider --C"
    lines = [*table(HEAD, [_row(cell) for cell in result.cells]), "", *facts(result.facts())]
    if result.trained is None:
        lines += following(("sweep", "--store", result.store, "--resume", result.sweep, "--train-best"))
    else:
        lines += ["", *facts(training_facts(result.trained))]
        lines += following(*measuring(result.trained.model))
    return Outcome(result.to_dict(), lines, [edge] if result.at_edge else [])


def _row(cell: SweepCell) -> tuple[str, ...]:
    return (
        cell.variant.name, f"{cell.C:g}", f"{cell.mean:.2%}", f"{cell.error:.2%}",
        f"{cell.low:.1%} to {cell.high:.1%}", f"{cell.relative_gap:.1e}", f"{cell.passes:,}",
        cell.state, cell.why,
    )  # fmt: skip


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
        **{**options.model_dump(), "store": store},
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
    from topline.pipeline.jobs import training_facts

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
    predicting = ("predict", model, "--images", "FOLDER", "--output", "predictions.csv")
    exporting = ("export", model, "--format", "onnx", "--output", "model.onnx")
    return [*facts(shown), *following(predicting, exporting, ("models", "list", "--store", result.store))]
