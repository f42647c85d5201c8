"""Training that continues from a stored model on edited rows: its settings, without the rows."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from topline.pipeline.errors import ConfigError
from topline.pipeline.options import TrainConfig
from topline.storage.models import ModelRecord, load_model

#: Settings that a model does not pass on: where and how long its training ran, and its start.
_OWN = {"store", "dataset", "resume", "start_from", "checkpoint_seconds", "certify", "chosen"}
#: Settings that concern one loss and are not passed on to another.
_OF_LOSS = {"k", "weights", "margins", "smoothing", "smoothing_kind", "method"}


def settings_of_model(config: TrainConfig, model_url: str) -> TrainConfig:
    """Return `config`, which starts from a model, with open settings taken from that model's training.

    Store and dataset are the model's; k, weights, margins, smoothing and method only for the same loss.
    Raises `ConfigError` if the settings do not fit together.
    """
    model = load_model(model_url)
    given = config.model_dump(include=config.model_fields_set)
    own = {"store": model.store.url, "dataset": model.record.dataset}
    values = {**handed_on(config, model.record), **own, **given, "start_from": model.record.id}
    return continued(values, model.record)


def handed_on(config: TrainConfig, record: ModelRecord) -> dict[str, Any]:
    """Return, by name, the settings that `config` leaves open; a loss's own only for the same loss."""
    recorded, given = record.config, config.model_fields_set
    other_loss = "loss" in given and config.loss != recorded.get("loss")
    left_out = _OWN | given | (_OF_LOSS if other_loss else set())
    return {
        name: value
        for name, value in recorded.items()
        if name in TrainConfig.model_fields and name not in left_out
    }


def continued(values: dict[str, Any], record: ModelRecord) -> TrainConfig:
    """Return the options of training continued from a model; raise `ConfigError` if they do not fit."""
    try:
        return TrainConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"the settings of {record.id} cannot be continued: {error}") from error
