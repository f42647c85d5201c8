"""Backbones: frozen values that turn images into feature vectors, in any process.

HOG and Fisher vectors need no weights; `onnx:FILE` and `timm:NAME` run networks.  Datasets and models store a
backbone's specification, from which the same one is made again; `registry.py` lists all by name.
"""

from __future__ import annotations

from topline.pipeline.backbones.base import (
    Backbone,
    FeatureFunction,
    Features,
    FittableBackbone,
    IntegerOptions,
)
from topline.pipeline.backbones.registry import (
    BACKBONES,
    backbone_of_spec,
    fitted_backbone,
    make_backbone,
    register_backbone,
)

__all__ = [
    "BACKBONES",
    "Backbone",
    "FeatureFunction",
    "Features",
    "FittableBackbone",
    "IntegerOptions",
    "backbone_of_spec",
    "fitted_backbone",
    "make_backbone",
    "register_backbone",
]
