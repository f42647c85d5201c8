"""Backbones: images to feature vectors.  A new one is a class like `Hog` and a line in `BACKBONES`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topline.pipeline.backbones.base import Backbone, FeatureFunction, Features, FittableBackbone
from topline.pipeline.backbones.fisher import Fisher
from topline.pipeline.backbones.hog import Hog
from topline.pipeline.backbones.onnx import OnnxNetwork
from topline.pipeline.backbones.timm import TimmModel
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.options.ingest import BackboneConfig

__all__ = [
    "BACKBONES",
    "Backbone",
    "FeatureFunction",
    "Features",
    "FittableBackbone",
    "backbone_of_spec",
    "make_backbone",
]

BACKBONES: Mapping[str, type[Backbone]] = {kind.name: kind for kind in (Hog, Fisher, OnnxNetwork, TimmModel)}


def make_backbone(config: BackboneConfig) -> Backbone:
    """Backbone that `config` describes; `ConfigError` or `InputError` where there is no such thing."""
    name, _, argument = config.backbone.partition(":")
    if name not in BACKBONES:
        raise ConfigError(f"there is no backbone {name!r}: write hog, fisher, onnx:FILE or timm:NAME")
    return BACKBONES[name].from_config(argument.strip(), config)


def backbone_of_spec(spec: Mapping[str, Any]) -> Backbone:
    """Backbone that gave `spec`; `InputError` where this version has none of that name."""
    kind = BACKBONES.get(str(spec.get("name")))
    if kind is None:
        raise InputError(f"the features were made by the backbone {spec.get('name')!r}, unknown here")
    return kind.from_spec(spec)
