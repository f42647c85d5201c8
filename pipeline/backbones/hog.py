"""Histograms of oriented gradients: features of shape that need no weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from PIL import Image

from topline.pipeline.backbones.base import FeatureFunction, Features, IntegerOptions, resized
from topline.pipeline.errors import ConfigError
from topline.pipeline.images import Pixels

LARGEST_SIDE = 1024


@dataclass(frozen=True)
class Hog(IntegerOptions):
    """Gradient histograms of Dalal and Triggs (CVPR 2005), by scikit-image.

    An image is resized to `size` x `size` pixels, whatever its proportions, and cut into cells of `cells` x
    `cells` pixels with a histogram of `orientations` each; blocks of `block` x `block` cells, one beginning
    in every cell, are normalised (L2-Hys).  Each pixel takes the colour with the largest gradient.  The
    defaults give 7 * 7 * 2 * 2 * 9 = 1764 features.
    """

    name: ClassVar[str] = "hog"

    size: int = 96
    cells: int = 12
    block: int = 2
    orientations: int = 9

    def __post_init__(self) -> None:
        if not 1 <= self.cells * self.block <= self.size <= LARGEST_SIDE:
            raise ConfigError(
                f"hog has blocks of {self.block} cells of {self.cells} pixels in {self.size} pixels: at least"
                f" one block must fit, and size is at most {LARGEST_SIDE}"
            )
        if not 1 <= self.orientations <= 180:
            raise ConfigError(f"hog has 1 to 180 orientations, not {self.orientations}")

    @property
    def dim(self) -> int:
        """Number of features."""
        blocks = self.size // self.cells - self.block + 1
        return blocks**2 * self.block**2 * self.orientations

    @property
    def side(self) -> int:
        """Images are resized to this."""
        return self.size

    def about(self) -> str:
        """Return what they are."""
        return "HOG (histograms of oriented gradients), a fixed formula without training"

    def open(self) -> FeatureFunction:
        """Return the function of images; nothing is loaded."""
        return self._features

    def _features(self, images: Sequence[Pixels]) -> Features:
        from skimage.feature import hog

        rows = np.empty((len(images), self.dim), dtype=np.float32)
        for row, image in zip(rows, images, strict=True):
            # Bicubic keeps tiny images (digits of 8 x 8) round when they are enlarged.
            small = min(image.shape[:2]) < self.size
            filter_ = Image.Resampling.BICUBIC if small else Image.Resampling.BILINEAR
            row[:] = hog(
                np.asarray(resized(image, self.size, self.size, filter_)),
                orientations=self.orientations,
                pixels_per_cell=(self.cells, self.cells),
                cells_per_block=(self.block, self.block),
                block_norm="L2-Hys",
                channel_axis=-1,
            )
        return rows
