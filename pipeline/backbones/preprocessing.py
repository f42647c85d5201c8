"""From pixels of any size to the array that a network takes: resize, crop, scale, normalise, lay out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from topline.pipeline.errors import InputError
from topline.pipeline.images import Pixels
from topline.pipeline.options.ingest import Channels, Interpolation, Layout

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

FILTERS: dict[str, Image.Resampling] = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}

# Rows beyond a box that a filter looks at, at most, in pixels of the result.
REACH = 3.0

Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class Preprocessing(BaseModel):
    """How an image is brought into a network's form; the defaults are those of most networks for ImageNet.

    The shorter side becomes `resize` pixels, the central `crop` x `crop` are cut out, values in 0..1 have
    `mean` subtracted and are divided by `std` (in the order R, G, B); `channels` and `layout` are the orders
    of colours and axes in the network's input.  `resize` 0 means crop / 0.875.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    resize: int = Field(default=0, strict=True, ge=0, le=8192)
    crop: int = Field(default=224, strict=True, ge=1, le=4096)
    mean: tuple[Number, Number, Number] = IMAGENET_MEAN
    std: tuple[Positive, Positive, Positive] = IMAGENET_STD
    layout: Layout = "NCHW"
    channels: Channels = "RGB"
    interpolation: Interpolation = "bilinear"

    @model_validator(mode="after")
    def _crop_fits(self) -> Self:
        if self.resize and self.crop > self.resize:
            raise ValueError(f"crop {self.crop} does not fit into resize {self.resize}: make it smaller")
        return self

    @classmethod
    def from_values(cls, values: Mapping[str, Any], place: str) -> Self:
        """Return the preprocessing in a JSON object; `InputError` naming `place` for wrong values."""
        try:
            return cls(**values)
        except ValidationError as error:
            parts = ([*map(str, part["loc"]), part["msg"]] for part in error.errors())
            wrong = "; ".join(f"{'.'.join(name)}: {text}" if name else text for *name, text in parts)
            raise InputError(f"{place}: {wrong.replace('Value error, ', '')}") from error

    def values(self) -> dict[str, Any]:
        """Return plain values for a spec."""
        return self.model_dump(mode="json")

    def words(self, *, normalise: bool = True) -> str:
        """Return in words what happens to an image; without `normalise` its bytes stay as they are."""
        size = f"shorter side {self.shorter_side} ({self.interpolation}), central {self.crop} x {self.crop}"
        if not normalise:
            return f"{size}, {self.channels} bytes, {self.layout}"
        mean, std = (", ".join(f"{value:.4g}" for value in values) for values in (self.mean, self.std))
        return f"{size}, {self.channels} in 0..1 less ({mean}) over ({std}), {self.layout}"

    @property
    def shorter_side(self) -> int:
        """Pixels of the shorter side after resizing."""
        return self.resize or round(self.crop / 0.875)

    def laid_out(self, squares: Sequence[Pixels], *, normalise: bool = True) -> NDArray[Any]:
        """Return squares as (b, 3, crop, crop) or (b, crop, crop, 3): float32, or the bytes as they are."""
        planes = np.ascontiguousarray(np.stack(squares).transpose(0, 3, 1, 2))
        values: NDArray[Any] = planes
        if normalise:
            # In place and plane by plane: with the colours innermost it takes a third of a network's time.
            values = planes.astype(np.float32)
            values /= np.float32(255)
            values -= np.asarray(self.mean, np.float32)[:, None, None]
            values /= np.asarray(self.std, np.float32)[:, None, None]
        if self.channels == "BGR":
            values = values[:, ::-1]
        return np.ascontiguousarray(values if self.layout == "NCHW" else values.transpose(0, 2, 3, 1))

    def square(self, image: Pixels) -> Pixels:
        """Return the central `crop` x `crop` pixels of the resized image."""
        height, width = image.shape[:2]
        scale = self.shorter_side / min(height, width)
        w, h = max(self.crop, round(width * scale)), max(self.crop, round(height * scale))
        left, top = (w - self.crop) // 2, (h - self.crop) // 2
        # Only what the crop will show is computed: an image 1 x 30000 would become gigabytes otherwise.
        across = (left * width / w, (left + self.crop) * width / w)
        upward, downward = top * height / h, (top + self.crop) * height / h
        # Columns first: versions of Pillow differ in what they begin with, and round to bytes between.
        reach = REACH * max(1.0, height / h)
        above, below = max(0, int(upward - reach)), min(height, math.ceil(downward + reach))
        chosen = FILTERS[self.interpolation]
        strip = Image.fromarray(image[above:below])
        strip = strip.resize((self.crop, below - above), chosen, (across[0], 0, across[1], below - above))
        box = (0, upward - above, self.crop, downward - above)
        return np.asarray(strip.resize((self.crop, self.crop), chosen, box))


def read_sidecar(path: Path) -> dict[str, Any]:
    """Return the JSON object in the sidecar file `path`, empty where there is no such file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(values, dict):
        raise InputError(
            f"{path} holds one JSON object with the preprocessing, not a {type(values).__name__}"
        )
    return values
