"""The features where nobody names them: a network's for photographs, of shapes for small drawings and digits.

The rule looks at pixels alone.  A drawing has no colour, and is tiny or drawn in lines: most of its pixels
are nearly black or nearly white.  A grey photograph has grey levels, a small one has colours.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np

from topline.pipeline.backbones.samples import pictures_of
from topline.pipeline.images import ImageListing, Pixels
from topline.pipeline.options import ImageLimits

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
    """Return hog where most of up to 64 images are drawings, efficientnet_lite0 otherwise.

    Which images are looked at follows from the listing.  Where none can be read it is efficientnet_lite0.
    """
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
