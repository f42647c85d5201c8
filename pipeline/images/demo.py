"""Real images for a first run: the handwritten digits of scikit-learn, written out as PNG files."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def write_digits(folder: Path) -> Path:
    """Write scikit-learn's 1797 digits (8 x 8, grey) as `folder`/<name>/<number>.png, all or none of them.

    Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning
    Repository.
    """
    if folder.is_dir():
        return folder
    from sklearn.datasets import load_digits

    digits = load_digits()
    # 17 grey levels, 0 to 16, spread over the 256 of a PNG file.
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as staging:
        made = Path(staging, folder.name)
        for number, (image, label) in enumerate(zip(pixels, digits.target, strict=True)):
            (made / NAMES[label]).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(made / NAMES[label] / f"{number:04d}.png")
        try:
            made.replace(folder)
        except OSError:
            # Another run has just put the same images there.
            if not folder.is_dir():
                raise
    return folder
