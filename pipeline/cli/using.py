"""`topline evaluate`, `predict`, `inspect`, `suggest`, `report` and `export`: what a model is good for."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from topline.pipeline.cli.command import Call, ModelArgument, Outcome, find_model
from topline.pipeline.cli.table import FAILURE, SUCCESS, facts, following, table, visible
from topline.pipeline.errors import ConfigError
from topline.pipeline.export import chosen_format
from topline.pipeline.options import (
    ClusterConfig,
    EvaluateConfig,
    ExportConfig,
    ExportOptions,
    InspectConfig,
    PredictConfig,
    SuggestConfig,
    as_words,
)
from topline.solvers.counts import how_many

if TYPE_CHECKING:
    from topline.pipeline.evaluation import Evaluation, MultilabelEvaluation
    from topline.pipeline.evaluation.records import SetQuality
    from topline.pipeline.inspection import Inspection
    from topline.pipeline.inspection.suspects import ClassGain
    from topline.pipeline.prediction import FeaturesResult, Prediction, PredictResult


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
            " cardinality: as many labels per row as in training"
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

    config, url = call.config(EvaluateConfig), find_model(model)
    if images is not None or features is not None:
        if call.chose("evaluate", *EvaluateConfig.model_fields) or threshold_for is not None:
            raise ConfigError(
                "--split, --confused and --threshold-for are about the model's dataset: leave them out with"
                " --images and --features"
            )
        return _on_new_data(call, url, images=images, features=features, labels_name=labels_name)
    if labels_name is not None:
        raise ConfigError("--labels-name is about --features: name a file of them")
    classify = ("predict", url, "--dataset", "latest", "--output", "predictions.csv")
    after = following(classify, ("report", url))
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
    lines += [] if found.probabilities is None else [f"probabilities: {found.probabilities.text}", ""]
    lines += [*sets_table(found.sets), ""] if found.sets else []
    lines += [*_worst(found, worst), *after]
    return Outcome(found.to_dict(), lines, [found.no_better] if found.no_better else [])


def _on_new_data(call: Call, url: str, **given: str | None) -> Outcome:
    from topline.pipeline.errors import InputError
    from topline.pipeline.options import PredictConfig
    from topline.pipeline.prediction import predict, predict_features

    if None not in (given["images"], given["features"]):
        raise ConfigError("--images and --features are two things to measure on: give one of them")
    named = {name: one for name, one in given.items() if one is not None}
    config = PredictConfig.model_validate({**named, "follow_links": True})
    work = predict if config.images is not None else predict_features
    found = work(url, config, call.progress)
    if found.scored is None:
        raise InputError(
            "no row has a label of one class: put images into folders named by class, or name the column by"
            " --labels-name"
        )
    payload = {"model": found.model, **asdict(found.scored)}
    return Outcome(payload, facts({"model": found.model, "accuracy": found.scored.text()}))


def sets_table(sets: Sequence[SetQuality]) -> list[str]:
    """Return the lines of prediction sets; k is the fixed number of guesses that is as accurate."""
    from topline.pipeline.evaluation import with_interval

    head = ("sets of coverage", "measured", "worst class", "mean size", "empty", "fixed k")
    rows = [
        (
            f"{one.coverage:g}{' per class' if one.per_class else ''}, {one.sets_by}",
            with_interval(f"{one.measured:.1%}", one.interval),
            f"{one.least_class:.1%}", f"{one.mean_size:.2f}", f"{one.empty:.1%}", str(one.fixed_k),
        )
        for one in sets
    ]  # fmt: skip
    return table(head, rows, spare=("fixed k", "empty"))


def _multilabel_lines(found: MultilabelEvaluation, worst: int) -> list[str]:
    rows = how_many(found.rows, f"{found.split} rows")
    lines = [f"{rows} of {found.dataset}, {found.labels_per_row:.2f} labels per row", ""]
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


#: So many images are listed where all are in a table; a page has the least certain of many.
LISTED = 20


def predict(call: Call, model: ModelArgument) -> Outcome:
    """Classify new images, with --features the rows of a file, or with --dataset those of a store.

    A model of several labels per row predicts those that score above its threshold.
    """
    from topline.pipeline.prediction import predict as classify

    config = call.config(PredictConfig)
    given = [name for name in ("images", "features", "dataset") if getattr(config, name) is not None]
    if len(given) > 1:
        raise ConfigError(f"--{given[0]} and --{given[1]} are two things to classify: give one of them")
    inside = [name for name in ("features_name", "labels_name") if getattr(config, name) is not None]
    if inside and config.features is None:
        flag = "--" + inside[0].replace("_", "-")
        raise ConfigError(f"{flag} names what is inside the file of --features: give that, or leave it out")
    if config.dataset is not None:
        return _predict_dataset(call, model, config)
    if config.store or call.chose("cluster", *ClusterConfig.model_fields):
        raise ConfigError("--store and --workers belong to --dataset: name a dataset, or leave them out")
    url = find_model(model)
    if config.features is not None:
        return _predict_features(call, url, config)
    found: PredictResult = call.shown(lambda: classify(url, config, call.progress))
    # A table that was asked for may be missing, for want of room.
    listed = found.predictions if found.output is None else found.predictions[:LISTED]
    unreadable, images = found.rejected, len(found.predictions)
    warnings = [f"{unreadable} of {images} images could not be read"] if unreadable else []
    lines = _listing(call, config, "image", listed, images, found)
    if config.output is None and config.page is None:
        files = ("--output", "predictions.csv", "--page", "predictions.html")
        lines += following(("predict", url, *_given(config), *files))
    else:
        lines += following(("inspect", url))
    return Outcome(found.to_dict(), lines, warnings, FAILURE if 0 < unreadable == images else SUCCESS)


def _fitting(head: Sequence[str], listed: Sequence[Prediction], width: int | None) -> list[str]:
    """Return the table with as many classes as fit `width` columns; unreadable images widen none."""
    good = [one for one in listed if one.status == "ok"]
    most = max((len(one.labels) for one in good), default=0)
    lines = table(head, [_line(one, most, sets=len(head) > 2) for one in good])
    while width is not None and most > 1 and max(map(len, lines)) > width:
        most -= 1
        lines = table(head, [_line(one, most, sets=len(head) > 2) for one in good])
    first = len(lines[1].partition(" ")[0])
    for place, one in enumerate(listed):
        if one.status != "ok":
            why = visible(f"{one.status}: {one.error}")
            lines.insert(2 + place, f"{visible(one.sample):<{first}}  {why}")
    return lines


def _line(one: Prediction, most: int, *, sets: bool) -> tuple[str, ...]:
    """Return an image with `most` of its classes that are not at 0.0 %, each with a figure, and its set."""
    shown = [*one.guesses[:1], *(pair for pair in one.guesses[1:] if pair[1] != "0.0%")]
    best = "  ".join(f"{label} ({figure})" for label, figure in shown[:most])
    best += "  ..." if len(shown) > most else ""
    best = best or "none above the threshold"
    members = "" if one.set is None else ", ".join(one.set) or "none of these"
    return (one.sample, best, members) if sets else (one.sample, best)


def _predict_features(call: Call, url: str, config: PredictConfig) -> Outcome:
    from topline.pipeline.prediction import Prediction, predict_features

    found = call.shown(lambda: predict_features(url, config, call.progress))
    listed = [Prediction.of_row(row, "sample_id") for row in found.first]
    lines = _listing(call, config, "row", listed, found.rows, found)
    if config.output is None:
        lines += following(("predict", url, *_given(config), "--output", "predictions.csv"))
    return Outcome(found.to_dict(), lines)


def _given(config: PredictConfig) -> list[str]:
    """Return the options that somebody chose, as words of the command line."""
    chosen = [name for name in type(config).model_fields if name in config.model_fields_set]
    return [word for name in chosen for word in as_words(name, getattr(config, name))]


def _listing(
    call: Call,
    config: PredictConfig,
    kind: str,
    listed: Sequence[Prediction],
    count: int,
    found: PredictResult | FeaturesResult,
) -> list[str]:
    """Return the lines of the first of `count` predictions, where the others are, and what else is known."""
    sets = [] if config.coverage is None else [f"holds it with probability {config.coverage:g}"]
    sets += [] if config.guess_price is None else ["as many as pay"]
    width = shutil.get_terminal_size().columns if call.out.isatty() else None
    lines = _fitting((kind, "best classes", *sets), listed, width)
    where = f"each in {found.output}" if found.output else "each in the table that --output names"
    lines += [f"and {count - len(listed):,} more, {where}"] if count > len(listed) else []
    accuracy = {} if found.scored is None else {"accuracy": found.scored.text()}
    shown = {**accuracy, "probabilities": found.probabilities, **_sets(found.sets)}
    return [*lines, "", *facts({**shown, **_written(found.output, found.page)})]


def _sets(sets: Mapping[str, Any] | None) -> dict[str, str]:
    """Return in words what sets hold and how large they are, nothing without sets."""
    if sets is None:
        return {}
    if "guess_price" in sets:
        what = f"hold as many guesses as pay at the price {sets['guess_price']:g}"
    else:
        kind = "in every class" if sets["per_class"] else "on average"
        what = f"hold the right class with probability {sets['coverage']:g} {kind}"
    note = f"; {sets['note']}" if "note" in sets else ""
    return {
        "sets": f"{what}: {sets['mean_size']:.2f} classes a row, {sets['empty']:,} times none of these{note}"
    }


def _predict_dataset(call: Call, model: str, config: PredictConfig) -> Outcome:
    from topline.pipeline.prediction import predict_dataset
    from topline.storage.stores import open_store

    url = find_model(model)
    found = call.shown(lambda: predict_dataset(url, config, call.config(ClusterConfig), call.progress))
    without = f", {found.unclassified:,} of them rejected" if found.unclassified else ""
    place = found.model.rpartition("/models/")[0] if config.store is None else config.store
    why = "full" if open_store(place).is_writable() else "read-only"
    speed = "stored already" if found.reused else f"{found.rows / found.seconds:,.0f} rows/s"
    shown = {
        "predictions": f"{found.predictions or f'not kept, the store is {why}'} ({speed})",
        "dataset": f"{found.dataset}, {how_many(found.rows, 'rows')}{without}",
        "classes": found.classes_text(),
        "probabilities": found.probabilities,
    }
    shown |= {**_sets(found.sets), **_written(found.output, found.page)}
    return Outcome(found.to_dict(), [*facts(shown), *following(("report", url))])


def _written(output: str | None, page: str | None) -> dict[str, str]:
    return {name: place for name, place in (("table", output), ("page", page)) if place}


#: What people call the rows of a split.
SPLIT_WORDS = {"train": "training", "val": "validation", "test": "test", "calibration": "calibration"}


def inspect(call: Call, model: ModelArgument) -> Outcome:
    """List the rows whose labels look wrong, and those that carry the classifier.

    A training row is judged as a model that has not seen it would.  The dual variables prove that judgement
    for most rows, and exact steps for others as far as --max-passes allows; the rest is reported as open, and
    estimated by models that were trained without a fold of the rows.
    """
    from topline.pipeline.inspection import inspect_model

    url = find_model(model)
    found: Inspection = inspect_model(url, call.config(InspectConfig), call.progress)
    rows = [
        (
            one.sample_id,
            one.label,
            one.suggested,
            f"{one.suspicion:.3f}",
            f"{one.loo_margin:+.3f}",
            one.decided,
        )
        for one in found.suspects
    ]
    settled = " (--max-passes settles them one at a time, in some tens of passes each)" if found.open else ""
    ranked = ", by the model and a softmax together" if found.second_opinion else ""
    if found.disputed_though_right:
        ranked += f"; {found.disputed_though_right:,} of them the model itself proves right"
    where = ", ".join(f"{rows:,} {SPLIT_WORDS[split]}" for split, rows in found.disputed_by_split.items())
    head = ("row", "label", "suggested", "suspicion", "margin", "proven")
    (least, most), estimate = found.loo_error, ""
    if found.loo_estimate is not None and found.loo_interval is not None:
        low, high = found.loo_interval
        by = f" on {found.folds} held-out folds" if found.folds and found.open else ""
        estimate = f"{found.loo_estimate:.1%}{by} ({100 * low:.1f} to {100 * high:.1f}), "
    shown = {
        "model": found.model,
        "training rows": f"{found.rows:,}: {found.right:,} proven right when left out, {found.wrong:,}"
        f" wrong, {found.open:,} open{settled}",
        "held-out rows": f"{found.others:,}, which the model has not seen: their margins are its own",
        "leave-one-out error": f"{estimate}proven to be between {least:.1%} and {most:.1%}",
        "labels in dispute": f"{found.disputed:,} of {found.rows + found.others:,}"
        + (f" ({where})" if where else "")
        + ranked,
        "near duplicates": "not looked for: there are too many rows to compare",
        **({"off the topic": how_many(len(found.off_topic), "rows")} if found.off_topic else {}),
        **({"more rows would help": _first(found.classes)} if found.classes else {}),
        **_written(found.output, found.page),
    }
    if found.duplicates is not None:
        labels = sum(pair.first_label != pair.second_label for pair in found.duplicates)
        splits = sum(pair.first_split != pair.second_split for pair in found.duplicates)
        shown["near duplicates"] = f"{labels:,} pairs with two labels, {splits:,} across splits"
    if found.output:
        edited = ("train", "--from", url, "--labels-from", found.output)
        after = following(edited, hint="once labels are corrected there")
    else:
        after = following(("inspect", url, "--output", "suspects.csv", "--page", "suspects.html"))
    return Outcome(found.to_dict(), [*(table(head, rows) if rows else []), "", *facts(shown), *after])


def suggest(
    call: Call,
    model: ModelArgument,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Rows to suggest")] = 50,
) -> Outcome:
    """Choose the new images or rows that are most worth a label.

    They are those that the model is least sure of, no two of them alike; rows of its dataset are left out.
    """
    from topline.pipeline.inspection import suggest_rows

    config = call.config(SuggestConfig)
    url = find_model(model)
    found = suggest_rows(url, config, count, call.progress)
    head = ("row", "first", "second", "lead", "stands for")
    rows = [
        (one.name, one.prediction, one.second, f"{one.lead:.3f}", f"{one.stands_for:,}")
        for one in found.suggested[:20]
    ]
    shown = {"rows": f"{found.rows:,}: {found.known:,} known, {found.unread:,} unreadable"}
    shown |= _written(found.output, found.page)
    return Outcome(found.to_dict(), [*table(head, rows), "", *facts(shown)])


def _first(classes: Sequence[ClassGain], most: int = 3) -> str:
    """Return the names of the classes that would gain most for certain."""
    named = ", ".join(one.name for one in classes[:most])
    more = len(classes) - most
    return named + (f" and {how_many(more, 'more classes')}" if more > 0 else "")


def report(
    call: Call,
    model: ModelArgument,
    output: Annotated[Path | None, typer.Option(help="Report to write (default: in the store)")] = None,
    training_sizes: Annotated[
        bool | None,
        typer.Option(
            "--training-sizes/--no-training-sizes",
            help="Say whether more images would help, by training on parts of them (default: if that is"
            " cheap)",
            show_default=False,
        ),
    ] = None,
) -> Outcome:
    """Write the report of a model: one HTML file with the answer, images, data, certificate and lineage.

    It shows the last evaluation; a model that was never evaluated is evaluated first, on its test rows.
    """
    from topline.pipeline.evaluation.measurement import evaluate as measure
    from topline.pipeline.report import write_report
    from topline.pipeline.rows import StoredModel
    from topline.storage.models import load_model

    url = find_model(model)
    evaluated = load_model(url).record.evaluation is not None
    if not evaluated and len(StoredModel.open(url).rows("test")):
        measure(url, "test", call.progress)
        evaluated = True
    place = write_report(url, output, call.progress, training_sizes=training_sizes)
    warnings = [] if evaluated else [f"{url} has no test rows: the report shows no accuracy"]
    lines = [*facts({"report": place}), *following(("inspect", url))]
    return Outcome({"model": url, "report": place}, lines, warnings)


def export(call: Call, model: ModelArgument) -> Outcome:
    """Write a model for other programs, and check that the file predicts the same."""
    from topline.pipeline.export.writing import export_model

    config = call.config(ExportConfig)
    form = chosen_format(config.format, config.output)
    url = find_model(model)
    path = config.output or Path(url.rpartition("/")[2] + form.suffix)
    asked = config.model_dump(include=config.model_fields_set & set(ExportOptions.model_fields))
    found = export_model(url, path, form.name, ExportOptions(**asked), most_loss=config.compress)
    shown = {"model": found.model, "file": f"{found.path} ({found.bytes:,} bytes, {found.format})"}
    if (less := found.compression) is not None:
        shown["compressed"] = (
            f"{less.rows:,} of {less.of_rows:,} rows; objective {less.primal:.6g}, {100 * less.loss:+.2g}%"
            f" of the model's and at most {100 * less.relative_gap:.2g}% above the least (recomputed)"
        )
    shown["scores"] = f"off by {found.largest_difference:.1e} at most"
    shown["best classes"] = "not compared, as the model's dataset is gone"
    if found.dataset_rows:
        tied = f", {found.tied_rows} with ties in another order" if found.tied_rows else ""
        rows = how_many(found.dataset_rows, "rows")
        shown["best classes"] = f"the same top-{found.top_k} in {rows} of the dataset{tied}"
    if form.load:
        shown["in Python"] = form.load.format(path=repr(found.path))
    return Outcome(
        found.to_dict(), [*facts(shown), *following(("models", "promote", url, "--reason", "WHY"))]
    )
