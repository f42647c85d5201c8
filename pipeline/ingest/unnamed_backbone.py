"""The features where nobody names a backbone: those of the store, or what suits the images."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from topline.pipeline.backbones import Backbone, backbone_of_spec, default_backbone, make_backbone
from topline.pipeline.errors import ConfigError
from topline.pipeline.images import ImageListing
from topline.pipeline.options import ExtractConfig
from topline.storage.datasets import list_datasets
from topline.storage.stores import Store

logger = logging.getLogger(__name__)


def unnamed_backbone(config: ExtractConfig, listing: ImageListing, store: Store, *, follow: bool) -> Backbone:
    """Return the backbone that images get where nobody names one; says which, and why."""
    chosen = sorted(config.preprocessing()) + ["checkpoint"] * (config.checkpoint is not None)
    if chosen:
        flag = "--" + chosen[0].replace("_", "-")
        raise ConfigError(f"{flag} is about a network that is not named: name it with --backbone")
    specs = [info.features.get("backbone") for info in list_datasets(store) if follow]
    stored = next((spec for spec in reversed(specs) if isinstance(spec, Mapping)), None)
    if stored is not None:
        return backbone_of_spec(stored)
    choice = default_backbone(listing, config.limits)
    logger.info("backbone: %s, as %s; --backbone names another", choice.name, choice.reason)
    return make_backbone(config.model_copy(update={"backbone": choice.name}))
