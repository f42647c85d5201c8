"""`topline evaluate`: accuracies of a model, or the metrics of several labels per row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from topline.pipeline.cli.arguments import ModelArgument, find_model
from topline.pipeline.cli.command import Call, Outcome
from topline.pipeline.cli.table import facts, following, table
from topline.pipeline.errors import ConfigError
from topline.pipeline.options import EvaluateConfig
from topline.solvers.counts import how_many

if TYPE_CHECKING:
    from topline.pipeline.evaluation import Evaluation, MultilabelEvaluation
    from topline.pipeline.evaluation.records import SetQuality

# `topline.solvers.estimators.multilabel_metrics.THRESHOLD_RULES`; reading it would load the solvers for every
# --help.
ThresholdRule = Literal[
    "f1_micro", "f1_macro", "f1_instance", "accuracy", "subset_accuracy", "hamming_loss", "cardinality"
]
QUALITIES = ("precision", "recall", "f1", "average_precision")


def evaluate(
    call: Call,
    model: ModelArgument,
    worst: Annotated[int, typer.Option("--worst", min=0, help="Classes to list, the worst first")] = 5,
    threshold_for: Annotated[
        ThresholdRule | None,
        typer.Option(
            help="For several labels per row: metric by which the threshold is chosen (f1_micro);"
            " cardinality: as many labels per row as in training",
        ),
    ] = None,
    images: Annotated[
        str | None, typer.Option(help="Measure on new images in folders named by class, or in a table")
    ] = None,
    features: Annotated[str | None, typer.Option(help="Measure on the rows of a file with labels")] = None,
    labels_name: Annotated[
        str | None, typer.Option(help="Array or column of the labels inside the file of --features")
    ] = None,
) -> Outcome:
    """Measure a model on held-out rows: top-k accuracies, or the metrics of several labels per row.

    --images or --features measure on new data; rows that the model was trained on do not count there.
    Ties count against the model.  Labels are predicted above a threshold, which is chosen on the validation
    rows, or where there are none on the training rows, and recorded with the model.
    """
    from topline.pipeline.evaluation import Evaluation
    from topline.pipeline.evaluation.measurement import evaluate as measure
    from topline.pipeline.report.tables import accuracy_facts

    config = call.config(EvaluateConfig)
    url = find_model(model)
    if images is not None or features is not None:
        if call.chose("evaluate", *EvaluateConfig.model_fields) or threshold_for is not None:
            raise ConfigError(
                "--split, --confused and --threshold-for are about the model's dataset: leave them out with"
                " --images and --features"
            )
        return _on_new_data(call, url, images=images, features=features, labels_name=labels_name)
    if labels_name is not None:
        raise ConfigError("--labels-name is about --features: name a file of them")
    after = following(
        ("topline", "predict", url, "--dataset", "latest", "--output", "predictions.csv"),
        ("topline", "report", url),
    )
    options = {"split": config.split, "confused": config.confused, "threshold_for": threshold_for}
    found: Evaluation | MultilabelEvaluation = call.shown(
        lambda: call.run("evaluate", measure, model_url=url, **options)
    )
    if not isinstance(found, Evaluation):
        return Outcome(found.to_dict(), [*_multilabel_lines(found, worst), *after])
    lines = [
        f"{how_many(found.rows, f'{found.split} rows')} of {found.dataset}",
        "",
        *table(("metric", "value, 95% interval"), accuracy_facts(found)),
        "",
        f"always predicting {found.majority_class}, the most frequent class: {found.majority_baseline:.1%}",
        "",
    ]
    lines += [*_trust(found), *_worst(found, worst), *after]
    return Outcome(found.to_dict(), lines, [found.no_better] if found.no_better else [])


def _on_new_data(call: Call, url: str, **given: str | None) -> Outcome:
    from topline.pipeline.errors import InputError
    from topline.pipeline.options import PredictConfig
    from topline.pipeline.prediction import predict, predict_features

    if None not in (given["images"], given["features"]):
        raise ConfigError("--images and --features are two things to measure on: give one of them")
    config = PredictConfig.model_validate({name: one for name, one in given.items() if one is not None})
    work = predict if config.images is not None else predict_features
    found = work(url, config, call.progress)
    if found.scored is None:
        raise InputError(
            "no row has a label of one class: put images into folders named by class, or name the column by"
            " --labels-name"
        )
    payload = {"model": found.model, **asdict(found.scored)}
    return Outcome(payload, facts({"model": found.model, "accuracy": found.scored.text()}))


def _trust(found: Evaluation) -> list[str]:
    """Return what probabilities are, and how the sets of the calibration rows do on these rows."""
    lines = [] if found.probabilities is None else [f"probabilities: {found.probabilities.text}", ""]
    return [*lines, *sets_table(found.sets), ""] if found.sets else lines


def sets_table(sets: Sequence[SetQuality]) -> list[str]:
    """Return the lines of prediction sets; k is the fixed number of guesses that is as accurate."""
    from topline.pipeline.evaluation import with_interval

    head = ("sets of coverage", "measured", "worst class", "mean size", "empty", "fixed k")
    rows = [
        (
            f"{one.coverage:g}{' per class' if one.per_class else ''}, {one.sets_by}",
            with_interval(f"{one.measured:.1%}", one.interval),
            f"{one.least_class:.1%}",
            f"{one.mean_size:.2f}",
            f"{one.empty:.1%}",
            str(one.fixed_k),
        )
        for one in sets
    ]
    return table(head, rows, spare=("fixed k", "empty"))


def _multilabel_lines(found: MultilabelEvaluation, worst: int) -> list[str]:
    rows = how_many(found.rows, f"{found.split} rows")
    lines = [
        f"{rows} of {found.dataset}, {found.labels_per_row:.2f} labels per row",
        "",
    ]
    lines += facts({**found.ranking(), "threshold": found.threshold.text()})
    lines += [f"  {'':<{22}}  {found.predicted_per_row:.2f} labels per row are predicted", ""]
    lines += table(("metric", "value", "with its own threshold", "which is"), found.table())
    parts = sorted(found.per_label, key=lambda part: (part.f1, -part.rows, part.name))[:worst]
    if not parts:
        return lines
    head = ("label", "rows", "precision", "recall", "F1", "average precision")
    shown = [(part.name, str(part.rows), *(f"{getattr(part, q):.1%}" for q in QUALITIES)) for part in parts]
    return [*lines, "", *table(head, shown)]


def _worst(found: Evaluation, most: int) -> list[str]:
    from topline.pipeline.evaluation.records import ranked_worst

    parts = ranked_worst(found.per_class)[:most]
    if not parts:
        return []
    ks = list(found.topk)
    head = ["class", "rows", *(f"top-{k}" for k in ks), "top-1 between"]
    rows = [
        [
            part.name, str(part.rows), *(f"{part.topk[k]:.1%}" for k in ks),
            " and ".join(f"{end:.1%}" for end in part.intervals[1]),
        ]
        for part in parts
    ]  # fmt: skip
    return [
        f"the {len(parts)} of {len(found.per_class)} classes that do worst, as far as their rows tell:",
        *table(head, rows, spare=[f"top-{k}" for k in reversed(ks[1:])]),
    ]
