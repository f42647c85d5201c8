"""Frozen dataclasses as JSON objects and back: only the fields that this version knows are read."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

import numpy as np

from topline.storage.errors import FormatError

T = TypeVar("T")


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def plain(value: Any) -> Any:
    """Return `value` in JSON's types: NumPy numbers and tuples are converted, what is not finite is null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@contextmanager
def reading(place: str) -> Iterator[None]:
    """Turn a field that is missing in the record `place` into a `FormatError` that names both."""
    try:
        yield
    except KeyError as error:
        raise FormatError(f"{place} lacks the field {error}") from error


def from_fields(cls: type[T], record: Mapping[str, Any], place: str) -> T:
    """Return the object of the dataclass `cls` from a JSON object.

    Raises `FormatError` naming `place` if one is missing.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values = {name: value for name, value in record.items() if name in fields}
    for name, value in values.items():
        if isinstance(value, list) and str(fields[name].type).startswith("tuple"):
            values[name] = tuple(value)
    try:
        return cls(**values)
    except TypeError as error:
        raise FormatError(f"{place} lacks a field: {error}") from error
