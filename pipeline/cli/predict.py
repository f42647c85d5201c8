"""`topline predict`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

from topline.pipeline.cli.arguments import ModelArgument, find_model
from topline.pipeline.cli.command import Call, Outcome
from topline.pipeline.cli.exits import FAILURE, SUCCESS
from topline.pipeline.cli.table import facts, following, table, visible
from topline.pipeline.errors import ConfigError
from topline.pipeline.options import ClusterConfig, PredictConfig
from topline.solvers.counts import how_many

if TYPE_CHECKING:
    from topline.pipeline.prediction import Prediction, PredictResult
    from topline.pipeline.prediction.answers import Scored

#: So many images are listed where all are in a table; a page has the least certain of many.
LISTED = 20


def predict(call: Call, model: ModelArgument) -> Outcome:
    """Classify new images, with --features the rows of a file, or with --dataset those of a store.

    A model of several labels per row predicts those that score above its threshold.
    """
    from topline.pipeline.prediction import predict as classify

    config = call.config(PredictConfig)
    _refuse_two_things(config)
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
    more = len(found.predictions) - len(listed)
    unreadable = found.rejected
    warnings = [f"{unreadable} of {len(found.predictions)} images could not be read"] if unreadable else []
    shown = {**_accuracy(found.scored), "probabilities": found.probabilities}
    shown |= _written(found.output, found.page)
    lines = _fitting(("image", *_heads(config)), listed, _width(call))
    lines += [f"and {more:,} more, each in {found.output}"] if more else []
    lines += ["", *facts(shown)]
    if config.output is None and config.page is None:
        files = ("--output", "predictions.csv", "--page", "predictions.html")
        lines += following(("topline", "predict", url, "--images", str(config.images), *files))
    else:
        lines += following(("topline", "inspect", url))
    nothing = 0 < unreadable == len(found.predictions)
    return Outcome(found.to_dict(), lines, warnings, FAILURE if nothing else SUCCESS)


def _accuracy(scored: Scored | None) -> dict[str, str]:
    return {} if scored is None else {"accuracy": scored.text()}


def _refuse_two_things(config: PredictConfig) -> None:
    given = [name for name in ("images", "features", "dataset") if getattr(config, name) is not None]
    if len(given) > 1:
        first, second = (f"--{name}" for name in given[:2])
        raise ConfigError(f"{first} and {second} are two things to classify: give one of them")
    inside = [name for name in ("features_name", "labels_name") if getattr(config, name) is not None]
    if inside and config.features is None:
        flag = "--" + inside[0].replace("_", "-")
        raise ConfigError(f"{flag} names what is inside the file of --features: give that, or leave it out")


def _fitting(head: Sequence[str], listed: Sequence[Prediction], width: int | None) -> list[str]:
    """Return the table with all classes, or as many as a window of `width` columns has room for.

    The reason of an image that could not be read widens no column.
    """
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
    """Return an image with `most` of its best classes, their probabilities or scores, and its set.

    Of probabilities the best is shown, and the others that are not 0.0 %.
    """
    figures = [f"{p:.1%}" for p in one.probabilities or ()] or [f"{score:.3f}" for score in one.scores]
    shown = list(zip(one.labels, figures, strict=True))
    shown = [*shown[:1], *(pair for pair in shown[1:] if pair[1] != "0.0%")]
    best = "  ".join(f"{label} ({figure})" for label, figure in shown[:most])
    best += "  ..." if len(shown) > most else ""
    best = best or "none above the threshold"
    members = "" if one.set is None else ", ".join(one.set) or "none of these"
    return (one.sample, best, members) if sets else (one.sample, best)


def _predict_features(call: Call, url: str, config: PredictConfig) -> Outcome:
    from topline.pipeline.prediction import Prediction, predict_features

    found = call.shown(lambda: predict_features(url, config, call.progress))
    listed = [Prediction.of_row(row, "sample_id") for row in found.first]
    head = ("row", *_heads(config))
    lines = _fitting(head, listed, _width(call))
    more = found.rows - len(listed)
    where = f"each in {found.output}" if found.output else "each in the table that --output names"
    lines += [f"and {more:,} more, {where}"] if more else []
    shown = {**_accuracy(found.scored), "probabilities": found.probabilities}
    lines += ["", *facts({**shown, **_written(found.output, found.page)})]
    if config.output is None:
        names = {"--features-name": config.features_name, "--labels-name": config.labels_name}
        inside = [word for flag, name in names.items() if name is not None for word in (flag, name)]
        told = ("--features", str(config.features), *inside, "--output", "predictions.csv")
        lines += following(("topline", "predict", url, *told))
    return Outcome(found.to_dict(), lines)


def _heads(config: PredictConfig) -> tuple[str, ...]:
    sets = config.coverage is not None
    return ("best classes", *([f"holds it with probability {config.coverage:g}"] if sets else []))


def _width(call: Call) -> int | None:
    """Return the columns of the window, None where lines go to a file."""
    return shutil.get_terminal_size().columns if call.out.isatty() else None


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
    if found.sets is not None:
        kind = "in every class" if found.sets["per_class"] else "on average"
        shown["sets"] = (
            f"hold the right class with probability {found.sets['coverage']:g} {kind}:"
            f" {found.sets['mean_size']:.2f} classes a row, {found.sets['empty']:,} times none of these"
            f"{'; ' * ('note' in found.sets)}{found.sets.get('note', '')}"
        )
    shown |= _written(found.output, found.page)
    return Outcome(found.to_dict(), [*facts(shown), *following(("topline", "report", url))])


def _written(output: str | None, page: str | None) -> dict[str, str]:
    return {name: place for name, place in (("table", output), ("page", page)) if place}
