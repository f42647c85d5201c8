"""Values of a run as named arrays and plain JSON, and back: one codec for a state and all that it holds.

A value is a dataclass marked as `stored`, a tuple, an array, a number, a string or None; a dataclass is named
by its class, so a field may hold one of several.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from topline.solvers.errors import InvalidProblemError

T = TypeVar("T", bound=type)

#: Every storable class, by name.
CLASSES: dict[str, type] = {}


def stored(kind: T) -> T:
    """Register a frozen dataclass as storable; a decorator."""
    if CLASSES.setdefault(kind.__name__, kind) is not kind:
        raise TypeError(f"two classes that are stored have the name {kind.__name__}")
    return kind


def encoded(value: Any) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Return plain JSON that refers to arrays by name, and these arrays; raises TypeError for other types."""
    arrays: dict[str, NDArray[Any]] = {}
    return _plain(value, "state", arrays, {}), arrays


def decoded(plain: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Return the value that `encoded` gave as plain JSON and arrays.

    A missing field takes its default.  Raises InvalidProblemError for names that this version does not know,
    and for a missing field without default.
    """
    if isinstance(plain, list):
        return tuple(decoded(part, arrays) for part in plain)
    if not isinstance(plain, dict):
        return plain
    if "number" in plain:
        return float(plain["number"])
    if "array" in plain:
        return arrays[plain["array"]]
    kind = CLASSES.get(plain["is"])
    known = set() if kind is None else {field.name for field in fields(kind)}
    values = {name: decoded(part, arrays) for name, part in plain.items() if name != "is"}
    if kind is None or not values.keys() <= known:
        what = " and ".join(sorted(values.keys() - known)) if kind is not None else "such values"
        raise InvalidProblemError(
            f"the stored state holds {what} of {plain['is']}, which this version does not know; start anew"
        )
    needed = {field.name for field in fields(kind) if field.default is field.default_factory is MISSING}
    if not needed <= values.keys():
        raise InvalidProblemError(
            f"the stored state lacks {' and '.join(sorted(needed - values.keys()))} of {plain['is']}, which "
            "this version needs; start anew"
        )
    return kind(**values)


def _plain(value: Any, name: str, arrays: dict[str, NDArray[Any]], names: dict[int, str]) -> Any:
    if isinstance(value, np.ndarray):
        # An array that several fields share is stored once.
        arrays.setdefault(names.setdefault(id(value), name), value)
        return {"array": names[id(value)]}
    if isinstance(value, tuple):
        return [_plain(part, f"{name}.{place}", arrays, names) for place, part in enumerate(value)]
    if is_dataclass(value) and CLASSES.get(type(value).__name__) is type(value):
        parts = {each.name: getattr(value, each.name) for each in fields(value)}
        plain = {part: _plain(one, f"{name}.{part}", arrays, names) for part, one in parts.items()}
        return {"is": type(value).__name__, **plain}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"number": str(float(value))}
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"{name} is a {type(value).__name__}, which cannot be stored")
