"""Frozen dataclasses as JSON objects and back; fields unknown to this version are ignored."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
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
    """Return `value` in JSON types: NumPy numbers and tuples converted, non-finite numbers null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_object(value: Any) -> dict[str, Any]:
    """Return a dataclass, nested ones included, as a JSON object that `from_fields` reads."""
    return {key: plain(item) for key, item in dataclasses.asdict(value).items()}


@contextmanager
def reading(place: str) -> Iterator[None]:
    """Turn a missing field of the record `place` into a `FormatError` that names both."""
    try:
        yield
    except KeyError as error:
        raise FormatError(f"{place} lacks the field {error}") from error


def from_fields(cls: type[T], record: Mapping[str, Any], place: str) -> T:
    """Return a dataclass `cls` from a JSON object, nested dataclasses included.

    Raises `FormatError` naming `place` if a field is missing, or a number, text or bool has another type.
    """
    kinds: Mapping[str, Any] = _field_types(cls)  # type: ignore[arg-type]
    values = {name: _value(kinds[name], value, place) for name, value in record.items() if name in kinds}
    for name, value in values.items():
        if not _fits(kinds[name], value):
            raise FormatError(f"{place}: {name} is {str(value)[:40]!r}, and no {kinds[name].__name__}")
    try:
        return cls(**values)
    except TypeError as error:
        raise FormatError(f"{place} lacks a field: {error}") from error


@functools.cache
def _field_types(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _fits(kind: Any, value: Any) -> bool:
    """Return whether a value fits a field of a plain type; null stands for a non-finite number."""
    if kind not in (int, float, str, bool) or value is None:
        return True
    return isinstance(value, int | float if kind is float else kind) and (
        kind is bool or not isinstance(value, bool)
    )


def _value(kind: Any, value: Any, place: str) -> Any:
    """Return a JSON value as type `kind`: JSON has no tuples, dataclasses or int keys."""
    if isinstance(value, str | int | float | None):
        return value
    parts = [part for part in typing.get_args(kind) if part is not type(None)]
    if isinstance(value, Mapping):
        if dataclasses.is_dataclass(kind):
            return from_fields(kind, value, place)  # type: ignore[arg-type]
        if typing.get_origin(kind) is dict:
            items = sorted((int(key), value[key]) for key in value) if parts[0] is int else value.items()
            return {key: _value(parts[1], item, place) for key, item in items}
    if isinstance(value, list | tuple) and typing.get_origin(kind) is tuple:
        return tuple(_value(parts[0], item, place) for item in value)
    if typing.get_origin(kind) is types.UnionType and len(parts) == 1:
        return _value(parts[0], value, place)
    return value
