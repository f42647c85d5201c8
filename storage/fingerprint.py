"""Digests of bytes, configurations and arrays (SHA-256 throughout, never Python's `hash`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.storage.errors import FormatError, IntegrityError


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
