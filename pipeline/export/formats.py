"""The formats a model is exported in: how each is written, and how scores come out of what was written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.export.estimator import estimator_scores, write_estimator
from topline.pipeline.export.onnx import build_onnx, run_onnx
from topline.pipeline.rows.stored_model import StoredModel
from topline.pipeline.rows.transforms import Transforms

_SAFETENSORS_TYPES = {"float32": "F32", "float64": "F64", "int64": "I64", "int32": "I32"}


@dataclass(frozen=True, eq=False)
class Export:
    """One format: `write` a model to a path, with so many best classes; `scores` of rows from that path."""

    write: Callable[[StoredModel, Path, int], None]
    scores: Callable[[Path, NDArray[Any]], NDArray[Any]]


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
        **({"multilabel": True, "threshold": record.threshold} if record.multilabel else {}),
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


def _write_sklearn(stored: StoredModel, path: Path, top_k: int) -> None:  # noqa: ARG001 - has no graph
    write_estimator(stored, path)


FORMATS: Mapping[str, Export] = MappingProxyType(
    {
        "npz": Export(_write_npz, _npz_scores),
        "onnx": Export(_write_onnx, _onnx_scores),
        "safetensors": Export(_write_safetensors, _safetensors_scores),
        "sklearn": Export(_write_sklearn, estimator_scores),
    }
)
