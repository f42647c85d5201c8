"""All backbones by name, made of options or of a stored specification, and fitted where they have to be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topline.pipeline.backbones.base import Backbone, FittableBackbone
from topline.pipeline.backbones.fisher import Fisher
from topline.pipeline.backbones.hog import Hog
from topline.pipeline.backbones.lite0 import EfficientNetLite0
from topline.pipeline.backbones.onnx import OnnxNetwork
from topline.pipeline.backbones.samples import pictures_of
from topline.pipeline.backbones.timm import TimmModel
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.images import ImageListing
from topline.pipeline.options import BackboneConfig, ImageLimits
from topline.pipeline.progress import Progress, begin
from topline.storage.datasets import list_datasets
from topline.storage.stores import Store

BACKBONES: dict[str, type[Backbone]] = {
    kind.name: kind for kind in (EfficientNetLite0, Hog, Fisher, OnnxNetwork, TimmModel)
}


def register_backbone(kind: type[Backbone]) -> None:
    """Make a backbone known under its `name` in this process; `ConfigError` where another one has it."""
    if BACKBONES.setdefault(kind.name, kind) is not kind:
        raise ConfigError(f"there is another backbone {kind.name!r}: give the new one a name of its own")


def make_backbone(config: BackboneConfig) -> Backbone:
    """Return the backbone that `config` names; `ConfigError` or `InputError` where there is none."""
    if config.backbone is None:
        raise ConfigError(f"no backbone is named: use one of {', '.join(BACKBONES)}")
    name, _, argument = config.backbone.partition(":")
    if name not in BACKBONES:
        raise ConfigError(f"there is no backbone {name!r}: use one of {', '.join(BACKBONES)}")
    return BACKBONES[name].from_config(argument.strip(), config)


def backbone_of_spec(spec: Mapping[str, Any]) -> Backbone:
    """Return the backbone that gave `spec`; `InputError` where none of that name is registered."""
    kind = BACKBONES.get(str(spec.get("name")))
    if kind is None:
        raise InputError(f"the features were made by the backbone {spec.get('name')!r}, unknown here")
    return kind.from_spec(spec)


def fitted_backbone(
    backbone: Backbone,
    store: Store,
    listing: ImageListing,
    limits: ImageLimits,
    progress: Progress | None = None,
) -> Backbone:
    """Return the backbone ready to describe images; most are so already.

    One that is fitted is so once for a store: that of an earlier dataset there is taken again, so that
    features of later images go with those of earlier ones.  Only where there is none, it is fitted on images
    of the listing in a random order, which its seed decides, without those that are given as validation or
    test images; labels take no part.
    """
    if not isinstance(backbone, FittableBackbone):
        return backbone
    for info in reversed(list_datasets(store)):
        spec = info.features.get("backbone")
        again = backbone.fitted_as(spec) if isinstance(spec, Mapping) else None
        if again is not None:
            return again
    begin(progress, "fit on images")
    return backbone.fit(pictures_of(listing, limits, seed=backbone.seed, side=backbone.side))
