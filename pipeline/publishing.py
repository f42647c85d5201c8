"""Models as files that other programs read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError, PipelineError
from pipeline.onnx_export import build_onnx, run_onnx
from pipeline.stored_model import StoredModel
from pipeline.transforms import Transforms

ExportFormat = Literal["npz", "onnx", "safetensors"]

CHECKED_ROWS = 64
# Other programs compute in float32, with sums in another order.
CLOSE = 1e-4

_SAFETENSORS_TYPES = {"float32": "F32", "float64": "F64", "int64": "I64", "int32": "I32"}


@dataclass(frozen=True)
class ExportReport:
    """What was written, and how far its scores are from ours on the rows that were tried."""

    model: str
    path: str
    format: str
    bytes: int
    rows_checked: int
    largest_difference: float

    def to_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class _Export:
    """How one format is written, and how scores come out of what was written."""

    write: Callable[[StoredModel, Path, int], None]
    scores: Callable[[Path, NDArray[Any]], NDArray[Any]]


def export(
    model_url: str,
    path: Path,
    format: ExportFormat = "npz",  # noqa: A002 - the word of the command line
    *,
    top_k: int | None = None,
) -> ExportReport:
    """Write the model at `model_url` to `path`, read it back and compare its scores with ours.

    npz and safetensors hold W (features after transforms, m), the transforms' arrays and a JSON record
    with the class names; onnx is a graph from features to scores and to the `top_k` best classes (5, or m
    if smaller).
    Raises `ConfigError` for a format that is not offered and for a model with a kernel, `PipelineError` if
    the scores do not agree.
    """
    if format not in FORMATS:
        raise ConfigError(f"a model is not exported as {format!r}: take one of {', '.join(FORMATS)}")
    stored = StoredModel.open(model_url)
    record = stored.model.record
    if stored.kernel is not None:
        raise ConfigError(
            f"model {record.id} has the kernel {stored.kernel.name} and scores through its training rows,"
            " which no format holds: train with --transforms nystroem:1000 or fourier:4000 to export"
        )
    k = min(5, record.m) if top_k is None else top_k
    if not 1 <= k <= record.m:
        raise ConfigError(f"top-k {k} is not between 1 and the {record.m} classes of model {record.id}")
    path.parent.mkdir(parents=True, exist_ok=True)
    FORMATS[format].write(stored, path, k)
    rows = _rows_to_try(stored.input_width)
    ours = np.asarray(stored.transforms.apply(rows) @ stored.W)
    theirs = FORMATS[format].scores(path, rows)
    difference = float(np.abs(ours - theirs).max())
    if not difference <= CLOSE * max(1.0, float(np.abs(ours).max())):
        raise PipelineError(
            f"the scores of {path} differ from those of model {record.id} by {difference:.2e}: do not use it"
        )
    return ExportReport(record.id, str(path), format, path.stat().st_size, len(rows), difference)


def _rows_to_try(d: int) -> NDArray[np.float32]:
    """Random rows of very different sizes, and one of zeros."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(CHECKED_ROWS, d)) * np.geomspace(1e-2, 1e2, CHECKED_ROWS)[:, None]
    rows[0] = 0.0
    return rows.astype(np.float32)


def _named_arrays(stored: StoredModel) -> dict[str, NDArray[Any]]:
    return {"W": stored.W, **stored.transforms.arrays()}


def _description(stored: StoredModel) -> dict[str, Any]:
    record = stored.model.record
    return {
        "model": record.id,
        "class_names": list(record.class_names),
        "transforms": list(stored.transforms.names),
        "features": dict(record.features),
        "loss": dict(record.loss),
    }


def _write_npz(stored: StoredModel, path: Path, top_k: int) -> None:  # noqa: ARG001 - has no graph
    content: dict[str, Any] = {"record": np.array(json.dumps(_description(stored))), **_named_arrays(stored)}
    with path.open("wb") as file:
        np.savez(file, **content)


def _npz_scores(path: Path, rows: NDArray[Any]) -> NDArray[Any]:
    with np.load(path, allow_pickle=False) as content:
        arrays = {name: content[name] for name in content.files}
    names = json.loads(str(arrays.pop("record")))["transforms"]
    return np.asarray(Transforms.from_arrays(names, arrays).apply(rows) @ arrays["W"])


def _write_onnx(stored: StoredModel, path: Path, top_k: int) -> None:
    d = stored.input_width
    path.write_bytes(build_onnx(stored.W, stored.transforms, d, top_k, _description(stored)))


def _onnx_scores(path: Path, rows: NDArray[Any]) -> NDArray[Any]:
    return run_onnx(str(path), rows)


def _write_safetensors(stored: StoredModel, path: Path, top_k: int) -> None:  # noqa: ARG001 - has no graph
    """Write the format's eight bytes of header length, JSON header and raw arrays."""
    header: dict[str, Any] = {"__metadata__": {"record": json.dumps(_description(stored))}}
    parts, offset = [], 0
    for name, array in _named_arrays(stored).items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": _SAFETENSORS_TYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(raw)],
        }
        parts.append(raw)
        offset += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def _safetensors_scores(path: Path, rows: NDArray[Any]) -> NDArray[Any]:
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header: Mapping[str, Any] = json.loads(data[8:start])
    types = {code: name for name, code in _SAFETENSORS_TYPES.items()}
    arrays = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, last = (start + offset for offset in entry["data_offsets"])
            flat = np.frombuffer(data[first:last], dtype=types[entry["dtype"]])
            arrays[name] = flat.reshape(entry["shape"])
    names = json.loads(header["__metadata__"]["record"])["transforms"]
    return np.asarray(Transforms.from_arrays(names, arrays).apply(rows) @ arrays["W"])


FORMATS: Mapping[str, _Export] = MappingProxyType(
    {
        "npz": _Export(_write_npz, _npz_scores),
        "onnx": _Export(_write_onnx, _onnx_scores),
        "safetensors": _Export(_write_safetensors, _safetensors_scores),
    }
)
