"""Which model a person means, and how models are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topline.pipeline.cli.command import Call, Outcome
from topline.pipeline.cli.table import table
from topline.pipeline.errors import InputError

if TYPE_CHECKING:
    from topline.storage.models.registry import Standing

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Model URL such as STORE/models/m0001 or STORE/models/champion, or a store (its newest)",
    ),
]
StoreOption = Annotated[str, typer.Option("--store", help="Store of the models")]


HEAD = ("model", "dataset", "loss", "C", "method", "gap", "certified", "top-1", "top-5", "stage")


def find_model(text: str) -> str:
    """Give the URL of a model; it may be called "champion", and a store stands for its newest."""
    from topline.storage.models.records import list_models
    from topline.storage.stores.opening import open_store
    from topline.storage.stores.urls import join

    place, _, name = text.rstrip("/").rpartition("/")
    if place.endswith("models"):
        return _champion(place) if name == "champion" else text.rstrip("/")
    store = open_store(text)
    records = list_models(store)
    if not records:
        raise InputError(f"{text} holds no model: give STORE/models/m0001, or train one with topline train")
    return join(store.url, "models", records[-1].id)


def _champion(models: str) -> str:
    from topline.pipeline.registry.operations import champion_url

    found = champion_url(models.removesuffix("models"))
    if found is None:
        raise InputError(f"{models} has no champion: topline models promote makes a model the champion")
    return found


def list_(call: Call, store: StoreOption = "topline-run") -> Outcome:  # noqa: ARG001 - one shape for all
    """List the models of a store with their gaps, accuracies and stages, and who is champion since when."""
    from topline.pipeline.registry.operations import registered
    from topline.pipeline.registry.summary import summary

    standing, records = registered(store)
    models = [{**summary(record), "stage": standing.stage(record.id)} for record in records]
    head: tuple[str, ...] = HEAD
    rows: list[tuple[str, ...]] = [_row(model) for model in models]
    if any(model["mean_average_precision"] is not None for model in models):
        head = (*head[:-1], "mAP", head[-1])
        rows = [(*row[:-1], _precision(model), row[-1]) for row, model in zip(rows, models, strict=True)]
    lines = table(head, rows)
    if not models:
        lines = [f"{store} holds no model yet: topline train --store {store}"]
    reigns = [asdict(reign) for reign in standing.reigns]
    payload = {"store": store, "champion": standing.champion, "models": models, "champions": reigns}
    return Outcome(payload, [*lines, *_champion_lines(standing)])


def show(call: Call, model: ModelArgument) -> Outcome:  # noqa: ARG001 - one shape for all
    """Show everything that is recorded of a model: lineage, problem, certificate, accuracies, decisions."""
    from topline.pipeline.report.document import flat
    from topline.storage.models.records import load_model
    from topline.storage.models.registry import read_registry

    opened = load_model(find_model(model))
    standing, record = read_registry(opened.store), opened.record.to_json()
    decisions = [asdict(entry) for entry in standing.of(opened.record.id)]
    known = {"version": opened.record.version, "stage": standing.stage(opened.record.id)}
    evaluation = record.get("evaluation") or {}
    lists = ("per_class", "confused", "per_label")
    brief = {key: value for key, value in evaluation.items() if key not in lists}
    shown = {**known, **record, "evaluation": brief, "class_names": record["class_names"][:10]}
    width = max(len(name) for name, _ in flat(shown))
    lines = [f"{name:<{width}}  {value}" for name, value in flat(shown)]
    lines += [f"{'decision':<{width}}  {entry}" for entry in standing.of(opened.record.id)]
    return Outcome({"model": model, **record, **known, "decisions": decisions}, lines)


def _champion_lines(standing: Standing) -> list[str]:
    if not standing.reigns:
        return []
    last = standing.reigns[-1]
    if last.until is not None:
        return ["", f"no champion since {last.until}"]
    reasons = (f"  {reason}" for reason in last.reason.split("; "))
    return ["", f"champion {last.model} since {last.since}, by {last.by}:", *reasons]


def _precision(model: Mapping[str, Any]) -> str:
    """Mean average precision, of models of several labels a row."""
    found = model["mean_average_precision"]
    return "-" if found is None else f"{found:.1%}"


def _row(model: Mapping[str, Any]) -> tuple[str, ...]:
    gap, accuracy, loss = model["relative_gap"], model["accuracy"] or {}, model["loss"]
    certified = {None: "-", True: "yes", False: "no"}[model["certified"]]
    named = loss.get("name", "?") + (f" k={loss['k']}" if loss.get("k") else "")
    shares = (f"{accuracy[k]:.1%}" if k in accuracy else "-" for k in ("1", "5"))
    return (
        model["id"], model["dataset"], named, f"{model['C']:g}", model["method"],
        "-" if gap is None else f"{gap:.1e}", certified, *shares, model["stage"],
    )  # fmt: skip
