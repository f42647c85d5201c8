"""Real images for a first run: the handwritten digits of scikit-learn, written out as PNG files."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def write_digits(folder: Path) -> Path:
    """Write the 1797 digits of scikit-learn (8 x 8, grey) as `folder`/<name>/<number>.png; return `folder`.

    The folder appears whole or not at all; one that is there already is left as it is.  Source: E. Alpaydin,
    C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository.
    """
    if folder.is_dir():
        return folder
    from sklearn.datasets import load_digits

    digits = load_digits()
    # 17 grey levels, 0 to 16, spread over the 256 of a PNG file.
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for name in NAMES:
            (staging / name).mkdir()
        for number, (image, label) in enumerate(zip(pixels, digits.target, strict=True)):
            Image.fromarray(image).save(staging / NAMES[label] / f"{number:04d}.png")
        staging.chmod(0o755)
        try:
            staging.replace(folder)
        except OSError:
            # Another run has just put the same images there.
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder
