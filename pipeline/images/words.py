"""Labels as words: the one rule of which numbers are classes, in tables of images and of features."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: What to do about labels that are fractions.
NO_FRACTIONS = (
    "number classes from 0, or save their names as text, labels.astype(str), in .npy or Parquet; amounts are"
    " no classes"
)
_WHOLE = re.compile(r"\+?(-?\d+)(?:\.0*)?")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def word(value: object) -> str | None:
    """Return a label as text; None where it is missing."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, (bool, int)):
        return str(int(value))
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else str(value)
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    text = text.strip()
    if text.lower() in ("", "nan", "none", "null"):
        return None
    # LIBSVM writes +1, and many tools write whole numbers as 3.0; 007 stays a name.
    whole = _WHOLE.fullmatch(text)
    return whole.group(1) if whole else text


def numbers_in(words: Sequence[str]) -> NDArray[Any]:
    """Return the words of a text as they are, or, where all are numbers, its fractions as floats.

    A text has no types: 3.11 is a name beside nightly, and a number among others.
    """
    found = np.empty(len(words), dtype=object)
    found[:] = words
    if all(map(is_number, (text for text in words if word(text) is not None))):
        found[:] = [text if _is_whole(text) else float(text) for text in words]
    return found


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    return _NUMBER.fullmatch(text) is not None


def _is_whole(text: str) -> bool:
    return word(text) is None or _WHOLE.fullmatch(text) is not None
