"""Records as JSON objects: frozen dataclasses and back, digests and seals, findings of a check of a store.

Fields unknown to this version are ignored.  Every digest is SHA-256, never Python's `hash`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from topline.storage.errors import FormatError, IntegrityError

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


@dataclass(frozen=True)
class PlainRecord:
    """A dataclass whose fields are its JSON object."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


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


#: Advice for a file of which there is no other copy in the store.
RESTORE = "restore it from a copy"


@dataclass(frozen=True, order=True)
class Finding:
    """One defect: `kind` is a stable word, `path` the file relative to the store's root.

    `rows` are the affected dataset rows start..stop-1, if any; `what` says what was found, `fix` what to do.
    Leftovers of interrupted work are `harmless`.
    """

    kind: str
    path: str
    what: str
    fix: str
    rows: tuple[int, int] | None = None
    harmless: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the finding as a JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        rows = f" (rows {self.rows[0]}-{self.rows[1] - 1})" if self.rows else ""
        # An error turned into a finding already says what to do.
        fix = "" if self.fix in self.what else f"; {self.fix}"
        return f"{self.path}: {self.what}{rows}{fix}"


def digest_bytes(data: bytes | memoryview) -> str:
    """Return the SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def canonical_json(value: Any) -> bytes:
    """Return the canonical JSON text of `value`; `FormatError` for NaN and unsupported types."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise FormatError(f"this cannot be written as JSON: {error}") from error
    return text.encode()


def digest_json(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON of `value`, independent of the order of keys."""
    return digest_bytes(canonical_json(value))


def digest_array(array: NDArray[Any]) -> str:
    """Return the SHA-256 of an array's type, shape and values in row order."""
    head = canonical_json({"dtype": array.dtype.newbyteorder("<").str, "shape": list(array.shape)})
    body = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return hashlib.sha256(head + b"\n" + body.tobytes()).hexdigest()


def seal(record: Mapping[str, Any]) -> bytes:
    """Return the JSON text of `record` with its own digest inside, under "seal"."""
    body = {key: value for key, value in record.items() if key != "seal"}
    text = json.dumps({**body, "seal": digest_json(body)}, indent=1, sort_keys=True, ensure_ascii=False)
    return text.encode() + b"\n"


def unseal(data: bytes, place: str) -> dict[str, Any]:
    """Return the record that `seal` wrote; `IntegrityError` naming `place` if a single bit has changed."""
    try:
        record = json.loads(data)
        claimed = record.pop("seal")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise IntegrityError(f"{place} is damaged: it is not a sealed JSON record") from error
    if digest_json(record) != claimed:
        raise IntegrityError(f"{place} is damaged: its seal does not match its contents")
    return dict(record)
