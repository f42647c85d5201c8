"""From pixels of any size to the array that a network takes: resize, crop, scale, normalise, lay out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.images import Pixels

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@dataclass(frozen=True)
class Preprocessing:
    """How an image is brought into a network's form; the defaults are those of ImageNet networks.

    The shorter side becomes `resize` pixels, the central `crop` x `crop` are cut out, values in 0..1 have
    `mean` subtracted and are divided by `std` (in the order R, G, B); `channels` and `layout` are the orders
    of colours and axes in the network's input.  `resize` 0 means crop / 0.875.
    """

    resize: int = 0
    crop: int = 224
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    layout: str = "NCHW"
    channels: str = "RGB"
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            value = getattr(self, name)
            if len(value) != 3 or not np.isfinite(value).all():
                raise ConfigError(f"{name} has three numbers, one a colour, not {value}")
        if min(self.std) <= 0:
            raise ConfigError(f"std has three positive numbers, not {self.std}")
        choices = {"layout": ("NCHW", "NHWC"), "channels": ("RGB", "BGR"), "interpolation": tuple(FILTERS)}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} is {' or '.join(known)}, not {getattr(self, name)!r}")
        if not 1 <= self.crop <= 4096 or (self.resize and not self.crop <= self.resize <= 8192):
            raise ConfigError(
                f"crop {self.crop} and resize {self.resize} do not go together: crop is 1 to 4096, resize at"
                " least as large"
            )

    @classmethod
    def from_values(cls, values: Mapping[str, Any], place: str) -> Self:
        """Return the preprocessing in a JSON object; `InputError` naming `place` for wrong values."""
        known = {field.name: field for field in fields(cls)}
        checked: dict[str, Any] = {}
        for name, value in values.items():
            if name not in known:
                raise InputError(f"{place} has the unknown key {name!r}: known are {', '.join(known)}")
            default = known[name].default
            if isinstance(default, tuple):
                if not isinstance(value, (list, tuple)) or not all(
                    isinstance(x, (int, float)) for x in value
                ):
                    raise InputError(f"{place}: {name} is a list of numbers, not {value!r}")
                checked[name] = tuple(map(float, value))
            elif not isinstance(value, type(default)) or isinstance(value, bool):
                raise InputError(f"{place}: {name} is {default!r} or the like, not {value!r}")
            else:
                checked[name] = value
        return cls(**checked)

    def values(self) -> dict[str, Any]:
        """Return plain values for a spec."""
        return {**asdict(self), "mean": list(self.mean), "std": list(self.std)}

    @property
    def shorter_side(self) -> int:
        """Pixels of the shorter side after resizing."""
        return self.resize or round(self.crop / 0.875)

    def batch(self, images: Sequence[Pixels], *, normalise: bool = True) -> NDArray[Any]:
        """Return (b, 3, crop, crop) or (b, crop, crop, 3): float32, or the bytes without `normalise`."""
        pixels = np.stack([self._square(image) for image in images])
        if not normalise:
            return self._laid_out(pixels)
        mean, std = np.asarray(self.mean, np.float32), np.asarray(self.std, np.float32)
        return self._laid_out((pixels.astype(np.float32) / np.float32(255) - mean) / std)

    def _square(self, image: Pixels) -> Pixels:
        height, width = image.shape[:2]
        scale = self.shorter_side / min(height, width)
        w, h = max(self.crop, round(width * scale)), max(self.crop, round(height * scale))
        left, top = (w - self.crop) // 2, (h - self.crop) // 2
        # Only what the crop will show is computed: an image 1 x 30000 would become gigabytes otherwise.
        box = (
            left * width / w,
            top * height / h,
            (left + self.crop) * width / w,
            (top + self.crop) * height / h,
        )
        picture = Image.fromarray(image)
        return np.asarray(picture.resize((self.crop, self.crop), FILTERS[self.interpolation], box=box))

    def _laid_out(self, pixels: NDArray[Any]) -> NDArray[Any]:
        if self.channels == "BGR":
            pixels = pixels[..., ::-1]
        if self.layout == "NCHW":
            pixels = pixels.transpose(0, 3, 1, 2)
        return np.ascontiguousarray(pixels)


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
