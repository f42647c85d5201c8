"""What a retraining does where nobody says otherwise: what was done for the champion."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping
from typing import Any

from topline.pipeline.options import ExtractConfig, RetrainConfig, TrainConfig, build
from topline.pipeline.options.problem import resolved_k
from topline.pipeline.training import continued, handed_on
from topline.storage.datasets import list_datasets
from topline.storage.models import ModelRecord, list_models, read_standing
from topline.storage.stores import Store

logger = logging.getLogger(__name__)

#: What a dataset says of its making, by the names of the options.
_OF_IMAGES = ("test_share", "val_share", "calibration_share", "split_seed", "duplicates", "sample_weight")
#: Named even where they are the defaults, for they say most.
_NAMED = ("loss", "C")


def with_earlier_settings(config: RetrainConfig, store: Store) -> RetrainConfig:
    """Return `config` with what nobody gave taken from the champion, or else from the newest model.

    Says in a line what that is.  A model of features that were imported says nothing about images.
    """
    model, which = _earlier(store)
    if model is None:
        return config
    images, training = _of_images(config.extract, model, store), _of_training(config.train, model)
    extract = build(ExtractConfig, {**images, **config.extract.model_dump(include=_given(config.extract))})
    given = config.train.model_dump(include=_given(config.train))
    train = continued({**training, **given}, model)
    logger.info(
        "settings that are not given are those of %s, %s: %s; the rest are defaults",
        model.id,
        which,
        _in_words({**images, **training}, extract, train, _backbone(config.extract, model, store)),
    )
    return config.model_copy(update={"extract": extract, "train": train})


def _earlier(store: Store) -> tuple[ModelRecord | None, str]:
    standing = read_standing(store)
    models = [
        record
        for record in list_models(store)
        if record.features.get("kind") == "images" and standing.stage(record.id) != "deleted"
    ]
    champion = next((record for record in models if record.id == standing.champion), None)
    return (champion, "the champion") if champion else (models[-1] if models else None, "the newest model")


def _given(config: ExtractConfig | TrainConfig) -> set[str]:
    return set(config.model_fields_set)


def _of_images(config: ExtractConfig, model: ModelRecord, store: Store) -> dict[str, Any]:
    """Return how the images of a model were split and limited, as far as `config` leaves it open."""
    made = model.features
    groups = {"groups", "groups_from"}
    names = _OF_IMAGES if groups & config.model_fields_set else (*_OF_IMAGES, *sorted(groups))
    found = {name: made[name] for name in names if name in made} | dict(made.get("limits") or {})
    for info in list_datasets(store):
        if info.id == model.dataset:
            found["dtype"] = info.dtype
    return {name: value for name, value in found.items() if name not in config.model_fields_set}


def _of_training(config: TrainConfig, model: ModelRecord) -> dict[str, Any]:
    """Return how a model was trained, as far as `config` leaves it open.

    The default k is left to bend to the number of classes.
    """
    found = handed_on(config, model)
    # Not checked, for a loss that needs margins is nothing without them.
    bare = TrainConfig.model_construct(loss=model.config.get("loss"), weights=model.config.get("weights"))
    if found.get("k") == resolved_k(bare, model.m):
        found.pop("k", None)
    return found


def _backbone(config: ExtractConfig, model: ModelRecord, store: Store) -> str:
    """Return the name of the model's backbone where it is the one that the images get."""
    specs = [info.features.get("backbone") for info in list_datasets(store)]
    newest = next((spec for spec in reversed(specs) if isinstance(spec, Mapping)), None)
    same = config.backbone is None and newest is not None and newest == model.features.get("backbone")
    return str(newest["name"]) if newest is not None and same else ""


def _in_words(taken: Mapping[str, Any], extract: ExtractConfig, train: TrainConfig, backbone: str) -> str:
    """Return as flags what was taken from a model and is not the default."""
    said = {"backbone": backbone} if backbone else {}
    for config in (train, extract):
        for name, field in type(config).model_fields.items():
            value = getattr(config, name)
            if name in taken and (name in _NAMED or value != field.default):
                said[name] = value
    return " ".join(_flag(name, value) for name, value in said.items()) or "none"


def _flag(name: str, value: Any) -> str:
    word = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return word if value else word.replace("--", "--no-", 1)
    if isinstance(value, tuple):
        value = ",".join(map(str, value)) or "none"
    return f"{word} {shlex.quote(f'{value:g}' if isinstance(value, float) else str(value))}"
