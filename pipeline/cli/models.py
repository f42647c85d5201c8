"""Which model a person means, and how models are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.command import Call, Outcome
from pipeline.cli.table import table
from pipeline.errors import InputError

if TYPE_CHECKING:
    from storage.models import ModelRecord

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="Model URL such as STORE/models/m0001, or a store (its newest)")
]
StoreOption = Annotated[str, typer.Option("--store", help="Store of the models")]


def find_model(text: str) -> str:
    """Give the URL of a model from its URL or from the URL of a store, whose newest model is meant."""
    from storage.models import list_models
    from storage.stores import open_store
    from storage.urls import join

    if text.rstrip("/").rpartition("/")[0].endswith("models"):
        return text.rstrip("/")
    store = open_store(text)
    records = list_models(store)
    if not records:
        raise InputError(f"{text} holds no model: give STORE/models/m0001, or train one with topline train")
    return join(store.url, "models", records[-1].id)


def list_(call: Call, store: StoreOption = "topline-run") -> Outcome:  # noqa: ARG001 - one shape for all
    """List the models of a store with their gaps and accuracies."""
    from storage.models import list_models
    from storage.registry import read_registry
    from storage.stores import open_store

    opened = open_store(store)
    records, standing = list_models(opened), read_registry(opened)
    models = [{**_summary(record), "stage": standing.stage(record.id)} for record in records]
    rows = [(*_row(record), model["stage"]) for record, model in zip(records, models, strict=True)]
    head = ("model", "dataset", "loss", "C", "method", "gap", "certified", "top-1", "top-5", "stage")
    lines = table(head, rows) if rows else [f"{store} holds no model yet: topline train --store {store}"]
    return Outcome({"store": store, "models": models}, lines)


def show(call: Call, model: ModelArgument) -> Outcome:  # noqa: ARG001 - one shape for all
    """Show everything that is recorded of a model: data, problem, certificate, accuracies, revisions."""
    from pipeline.report import flat
    from storage.models import load_model

    record = load_model(find_model(model)).record.to_json()
    evaluation = record.get("evaluation") or {}
    brief = {key: value for key, value in evaluation.items() if key not in ("per_class", "confused")}
    shown = {**record, "evaluation": brief, "class_names": record["class_names"][:10]}
    width = max(len(name) for name, _ in flat(shown))
    return Outcome({"model": model, **record}, [f"{name:<{width}}  {value}" for name, value in flat(shown)])


def _summary(record: ModelRecord) -> dict[str, Any]:
    certificate, evaluation = record.certificate or {}, record.evaluation or {}
    return {
        "id": record.id,
        "dataset": record.dataset,
        "loss": dict(record.loss),
        "C": record.C,
        "method": record.method,
        "relative_gap": certificate.get("relative_gap"),
        "certified": certificate.get("certified"),
        "accuracy": evaluation.get("topk"),
        "created": record.created,
    }


def _row(record: ModelRecord) -> tuple[str, ...]:
    summary = _summary(record)
    gap, accuracy = summary["relative_gap"], summary["accuracy"] or {}
    certified = {None: "-", True: "yes", False: "no"}[summary["certified"]]
    loss = record.loss.get("name", "?") + (f" k={record.loss['k']}" if record.loss.get("k") else "")
    shares = (f"{accuracy[k]:.1%}" if k in accuracy else "-" for k in ("1", "5"))
    return (
        record.id, record.dataset, loss, f"{record.C:g}", record.method,
        "-" if gap is None else f"{gap:.1e}", certified, *shares,
    )  # fmt: skip
