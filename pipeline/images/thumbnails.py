"""Small JPEG pictures inside a page, as data URLs."""

from __future__ import annotations

import base64
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 96
QUALITY = 78


def thumbnail(image: NDArray[np.uint8], side: int = SIDE) -> str:
    """Make a data URL of a JPEG at most `side` pixels wide and high from RGB pixels (h, w, 3).

    Tiny pictures (digits of 8 x 8) are enlarged without smoothing, so that their pixels can be seen.
    """
    picture = Image.fromarray(image, mode=None).convert("RGB")
    largest = max(picture.size)
    if largest * 2 <= side:
        factor = side // largest
        picture = picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    else:
        picture.thumbnail((side, side))
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
