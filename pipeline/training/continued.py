"""Training that continues from a stored model on rows that were edited: its settings, without these rows."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from topline.pipeline.errors import ConfigError
from topline.pipeline.options import TrainConfig
from topline.storage.models import ModelRecord, load_model

#: What a model's training does not hand on: where and how long it ran, and what it started from.
_OWN = {"store", "dataset", "resume", "start_from", "checkpoint_seconds", "certify", "chosen"}
#: What says something of one loss, and is not handed on to another.
_OF_LOSS = {"k", "weights", "margins", "smoothing", "smoothing_kind", "method"}


def settings_of_model(config: TrainConfig, model_url: str) -> TrainConfig:
    """Return `config` with what nobody chose taken from the training of the model, which it starts from.

    Store and dataset are the model's; for another loss its k, weights, margins, smoothing and method are
    left out.  `ConfigError` where the settings do not go together.
    """
    model = load_model(model_url)
    given = config.model_dump(include=config.model_fields_set)
    own = {"store": model.store.url, "dataset": model.record.dataset}
    values = {**handed_on(config, model.record), **own, **given, "start_from": model.record.id}
    return continued(values, model.record)


def handed_on(config: TrainConfig, record: ModelRecord) -> dict[str, Any]:
    """Return the settings of a model's training that `config` leaves open, by name.

    For another loss those of the model's own are left out.
    """
    recorded, given = record.config, config.model_fields_set
    other_loss = "loss" in given and config.loss != recorded.get("loss")
    left_out = _OWN | given | (_OF_LOSS if other_loss else set())
    return {
        name: value
        for name, value in recorded.items()
        if name in TrainConfig.model_fields and name not in left_out
    }


def continued(values: dict[str, Any], record: ModelRecord) -> TrainConfig:
    """Return the options of a training that goes on from a model; `ConfigError` where they do not fit."""
    try:
        return TrainConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"the settings of {record.id} cannot be continued: {error}") from error
