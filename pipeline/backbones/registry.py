"""All backbones by name: chosen, made of options or of a stored specification, and fitted on images.

Where nobody names one the rule looks at pixels alone.  A drawing has no colour, and is tiny or drawn in
lines: most of its pixels are nearly black or nearly white.  A grey photograph has grey levels, a small one
has colours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from topline.pipeline.backbones.base import Backbone, FittableBackbone
from topline.pipeline.backbones.fisher import Fisher
from topline.pipeline.backbones.hog import Hog
from topline.pipeline.backbones.lite0 import EfficientNetLite0
from topline.pipeline.backbones.onnx import OnnxNetwork
from topline.pipeline.backbones.timm import TimmModel
from topline.pipeline.errors import ConfigError, ImageRejectedError, InputError
from topline.pipeline.images import ImageListing, Pixels, read_picture
from topline.pipeline.options import BackboneConfig, ImageLimits
from topline.pipeline.progress import Progress, begin
from topline.solvers.names import not_known
from topline.storage.datasets import list_datasets
from topline.storage.stores import Store


def pictures_of(listing: ImageListing, limits: ImageLimits, *, seed: int, side: int) -> Iterator[Pixels]:
    """Yield decoded images of no held-out split in the random order of `seed`, without rejected ones."""
    items = [item for item in listing.items if item.split in (None, "train")]
    for place in np.random.default_rng(seed).permutation(len(items)):
        try:
            yield read_picture(items[place].read(listing.root, limits.max_bytes), limits, side).pixels
        except ImageRejectedError:
            continue


PHOTOGRAPHS, DRAWINGS = "efficientnet_lite0", "hog"

#: Images that are looked at.
SAMPLE = 64
#: A drawing is tiny with a shorter side below this, in pixels.
TINY = 48

# Larger images are looked at in half, a quarter or an eighth of their size.
_SIDE = 256
# Grey levels: what colours of a pixel may differ by on average, and how near to black or white counts.
_COLOURLESS, _NEAR = 4.0, 32
# Share of pixels near black or white that makes lines.
_LINES = 0.9


@dataclass(frozen=True)
class DefaultBackbone:
    """The backbone that the rule names, and why, as a clause."""

    name: str
    reason: str


def default_backbone(listing: ImageListing, limits: ImageLimits) -> DefaultBackbone:
    """Return hog if most of up to 64 images are drawings, efficientnet_lite0 otherwise."""
    looked = [
        is_drawing(picture) for picture in islice(pictures_of(listing, limits, seed=0, side=_SIDE), SAMPLE)
    ]
    drawings = sum(looked)
    name = DRAWINGS if 2 * drawings > len(looked) else PHOTOGRAPHS
    kind = f"drawings or digits (no colour, and under {TINY} pixels or nearly all black and white)"
    return DefaultBackbone(name, f"{drawings} of {len(looked)} images looked at are {kind}")


def is_drawing(image: Pixels) -> bool:
    """Return whether pixels (h, w, 3) have no colour, and are few or nearly all black or white."""
    low, high = image.min(axis=2), image.max(axis=2)
    if float((high - low).mean()) > _COLOURLESS:
        return False
    if min(image.shape[:2]) < TINY:
        return True
    return bool(np.mean((high <= _NEAR) | (low >= 255 - _NEAR)) >= _LINES)


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
        raise ConfigError(not_known("backbone", name, BACKBONES))
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
    """Return the backbone ready to describe images; most are already.

    One that is fitted is fitted once per store, so that later features go with earlier ones, on images of the
    listing without held-out ones; labels take no part.
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
