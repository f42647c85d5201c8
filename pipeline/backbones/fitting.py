"""Backbones that learn from the images themselves: which images they see, and where they learnt before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from topline.pipeline.backbones import Backbone, FittableBackbone
from topline.pipeline.errors import ImageRejectedError
from topline.pipeline.images import ImageListing, Pixels, read_picture
from topline.pipeline.options.ingest import ImageLimits
from topline.pipeline.progress import Progress
from topline.storage.datasets import list_datasets
from topline.storage.stores import Store


def fitted_backbone(
    backbone: Backbone,
    store: Store,
    listing: ImageListing,
    limits: ImageLimits,
    progress: Progress | None = None,
) -> Backbone:
    """Give the backbone ready to describe images; most are as they come.

    One that learns does so once for a store: what a dataset there was made with is taken again, so that
    features of later images go with those of earlier ones.  Only where there is none, it learns from images
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
    if progress is not None:
        progress.begin("learn from images")
    return backbone.fit(_pictures(listing, limits, backbone.seed, backbone.side))


def _pictures(listing: ImageListing, limits: ImageLimits, seed: int, side: int) -> Iterator[Pixels]:
    """Decode images in a random order; those that are rejected are left out."""
    items = [item for item in listing.items if item.split in (None, "train")]
    for place in np.random.default_rng(seed).permutation(len(items)):
        try:
            yield read_picture(items[place].read(listing.root, limits.max_bytes), limits, side).pixels
        except ImageRejectedError:
            continue
