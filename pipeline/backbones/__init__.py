"""Backbones: frozen values that turn images into feature vectors, in any process.

`efficientnet_lite0` is a network whose weights come in a package, HOG and Fisher vectors need none,
`onnx:FILE` and `timm:NAME` run other networks.  Datasets and models store a backbone's specification, from
which the same one is made again; `registry.py` lists all by name, `choice.py` chooses where nobody names one.
"""

from __future__ import annotations

from topline.pipeline.backbones.base import (
    Backbone,
    FeatureFunction,
    Features,
    IntegerOptions,
    TwoStepFunction,
)
from topline.pipeline.backbones.registry import (
    BACKBONES,
    backbone_of_spec,
    default_backbone,
    fitted_backbone,
    make_backbone,
    register_backbone,
)
