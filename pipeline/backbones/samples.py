"""Some of the images, to look at before they are described."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from topline.pipeline.errors import ImageRejectedError
from topline.pipeline.images import ImageListing, Pixels, read_picture
from topline.pipeline.options import ImageLimits


def pictures_of(listing: ImageListing, limits: ImageLimits, *, seed: int, side: int) -> Iterator[Pixels]:
    """Yield decoded images in a random order, which follows from `seed`; rejected ones are left out.

    Images that are given as validation or test images take no part.
    """
    items = [item for item in listing.items if item.split in (None, "train")]
    for place in np.random.default_rng(seed).permutation(len(items)):
        try:
            yield read_picture(items[place].read(listing.root, limits.max_bytes), limits, side).pixels
        except ImageRejectedError:
            continue
