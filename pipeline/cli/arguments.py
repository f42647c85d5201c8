"""Arguments that several commands take, and which model a person means by one."""

from __future__ import annotations

from typing import Annotated

import typer

from topline.pipeline.errors import InputError

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Model URL such as STORE/models/m0001 or STORE/models/champion, or a store (its newest)",
    ),
]
StoreOption = Annotated[str, typer.Option("--store", help="Store of the models")]


def find_model(text: str) -> str:
    """Return the URL of a model; it may be called "champion", and a store stands for its newest."""
    from topline.storage.models import list_models
    from topline.storage.stores import open_store
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
    from topline.pipeline.registry import champion_url

    found = champion_url(models.removesuffix("models"))
    if found is None:
        raise InputError(f"{models} has no champion: topline models promote makes a model the champion")
    return found
