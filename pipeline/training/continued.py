"""Training that continues from a stored model on rows that were edited: its settings, without these rows."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from topline.pipeline.errors import ConfigError
from topline.pipeline.options import TrainConfig
from topline.storage.models import load_model

#: What a model's training does not hand on: where and how long it ran, and what it started from.
_OWN = {"store", "dataset", "resume", "start_from", "checkpoint_seconds", "certify"}
#: What says something of one loss, and is not handed on to another.
_OF_LOSS = {"k", "weights", "margins", "smoothing", "smoothing_kind", "method"}


def settings_of_model(config: TrainConfig, model_url: str) -> TrainConfig:
    """Return `config` with what nobody chose taken from the training of the model, which it starts from.

    Store and dataset are the model's; for another loss its k, weights, margins, smoothing and method are
    left out.  `ConfigError` where the settings do not go together.
    """
    model = load_model(model_url)
    given = config.model_dump(include=config.model_fields_set)
    other_loss = given.get("loss", model.record.config.get("loss")) != model.record.config.get("loss")
    left_out = _OWN | _OF_LOSS if other_loss else _OWN
    recorded: dict[str, Any] = {
        name: value
        for name, value in model.record.config.items()
        if name in TrainConfig.model_fields and name not in left_out
    }
    own = {"store": model.store.url, "dataset": model.record.dataset, "start_from": model.record.id}
    try:
        return TrainConfig.model_validate({**recorded, **own, **given, "start_from": model.record.id})
    except ValidationError as error:
        raise ConfigError(f"the settings of {model.record.id} cannot be continued: {error}") from error
