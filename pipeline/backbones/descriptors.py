"""Local descriptors of an image on a grid: gradients around a point, and colours around it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Float64Array = NDArray[np.float64]

# DAISY with two rings of six histograms of eight directions, and the one in the middle.
_RINGS, _HISTOGRAMS, _ORIENTATIONS = 2, 6, 8
GRADIENTS = (_RINGS * _HISTOGRAMS + 1) * _ORIENTATIONS
# Four by four cells, and of each the mean and the deviation of three colours.
_CELLS = 4
COLOURS = 2 * 3 * _CELLS**2


def gradient_grid(image: Image.Image, step: int, radius: int) -> Float64Array:
    """DAISY descriptors of length 1 (rows, columns, 104) around every `step`-th pixel, of its grey values.

    Source: E. Tola, V. Lepetit, P. Fua, "DAISY: an efficient dense descriptor applied to wide-baseline
    stereo", 2010; by scikit-image.
    """
    import skimage.feature

    daisy: Any = skimage.feature.daisy
    grey = np.asarray(image.convert("L"), dtype=np.float64) / 255.0
    return np.asarray(daisy(grey, step, radius, _RINGS, _HISTOGRAMS, _ORIENTATIONS, normalization="l2"))


def colour_grid(image: Image.Image, step: int, radius: int) -> Float64Array:
    """Local colour statistics of length 1 (rows, columns, 96) around the same pixels.

    They are the square roots of means and standard deviations of red, green and blue in 4 x 4 cells of a
    patch of 2 radius pixels.  Source: S. Clinchant et al., "XRCE's participation to ImagEval", 2007; thesis,
    sections 4.4.1 and 4.4.2.
    """
    pixels = np.asarray(image, dtype=np.int64)
    width = max(1, 2 * radius // _CELLS)
    area = width**2
    # Whole numbers, so that a black cell has exactly nothing.
    sums, squares = _box_sums(pixels, width), _box_sums(pixels**2, width)
    statistics = np.concatenate([sums, np.sqrt(area * squares - sums**2)], axis=2) / (255.0 * area)
    corners = [round(2 * radius * cell / _CELLS) for cell in range(_CELLS)]
    height, breadth = pixels.shape[0] - 2 * radius, pixels.shape[1] - 2 * radius
    cells = [
        statistics[down : down + height : step, right : right + breadth : step]
        for down in corners
        for right in corners
    ]
    rooted: Float64Array = np.sqrt(np.concatenate(cells, axis=2))
    norms = np.linalg.norm(rooted, axis=2, keepdims=True)
    return np.asarray(np.divide(rooted, norms, out=np.zeros_like(rooted), where=norms > 0.0))


def _box_sums(values: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """Sums over squares of `width` pixels, by their upper left corners; (h - width + 1, w - width + 1, c)."""
    total = np.zeros((values.shape[0] + 1, values.shape[1] + 1, values.shape[2]), dtype=np.int64)
    total[1:, 1:] = values.cumsum(axis=0).cumsum(axis=1)
    return total[width:, width:] - total[:-width, width:] - total[width:, :-width] + total[:-width, :-width]
