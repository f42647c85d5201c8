"""The images that a dataset was made of, read again where they lie."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def read_original(root: Path, entry: Mapping[str, object]) -> NDArray[np.uint8]:
    return np.asarray(Image.open(root / str(entry["path"])).convert("RGB"))
