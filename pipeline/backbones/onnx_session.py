"""A session of ONNX Runtime on one thread of the CPU, what it says of a file, and images through it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.backbones.base import Features, TwoStepFunction, short
from topline.pipeline.backbones.preprocessing import Preprocessing
from topline.pipeline.errors import InputError
from topline.pipeline.images import Pixels

# Protobuf itself holds no more; larger networks keep their weights in files beside.
LARGEST_FILE = 2 << 30

INPUT_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8}


@dataclass(frozen=True, eq=False)
class Network:
    """An ONNX network, as its bytes or the path of its file, and how images are prepared for it."""

    model: Path | bytes
    preprocessing: Preprocessing
    input_name: str
    output_name: str
    input_type: str = "tensor(float)"
    fixed_batch: int | None = None


@runtime_checkable
class NetworkBackbone(Protocol):
    """A backbone that is an ONNX network, which an export can hold."""

    def network(self) -> Network:
        """Return the network; `InputError` where its file is gone or has changed."""
        ...


@dataclass(frozen=True, eq=False)
class NetworkFunction(TwoStepFunction):
    """A network as a function of images, `at_once` or its fixed batch per call; errors name `file`."""

    session: Any
    file: str
    network: Network
    at_once: int | None = None

    def prepare(self, image: Pixels) -> Pixels:
        """Return the square of pixels that the network sees."""
        return self.network.preprocessing.square(image)

    def describe(self, prepared: Sequence[Pixels]) -> Features:
        """Return features (b, dim) of prepared images."""
        size = self.network.fixed_batch or self.at_once or len(prepared)
        parts = (prepared[start : start + size] for start in range(0, len(prepared), size))
        return np.concatenate([self._run(self._batch(part), size) for part in parts])

    def _batch(self, squares: Sequence[Pixels]) -> NDArray[Any]:
        kind = INPUT_TYPES[self.network.input_type]
        pixels = self.network.preprocessing.laid_out(squares, normalise=kind is not np.uint8)
        return pixels.astype(kind, copy=False)

    def _run(self, part: NDArray[Any], size: int) -> Features:
        missing = size - len(part) if self.network.fixed_batch else 0
        filled = np.concatenate([part, np.repeat(part[:1], missing, axis=0)]) if missing else part
        try:
            outputs = self.session.run([self.network.output_name], {self.network.input_name: filled})
        except Exception as error:
            # ONNX Runtime's own exceptions have no common base.
            raise InputError(
                f"{self.file} does not run on an input of shape {filled.shape}: {short(error)}"
            ) from error
        found = np.asarray(outputs[0])
        if found.ndim < 2 or found.shape[0] != len(filled) or np.prod(found.shape[2:], dtype=int) != 1:
            raise InputError(
                f"the output {self.network.output_name} of {self.file} has shape {found.shape}, not (b, dim):"
                " choose another with --output-name, or export the network with its pooling"
            )
        return found.reshape(len(filled), -1)[: len(part)].astype(np.float32)


def open_session(network: Path | bytes) -> Any:
    """Return a session of ONNX Runtime on one thread; `InputError` where it cannot run the file or bytes."""
    # As it is imported it would write an id to the user's cache, and later look up where to report to.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        held = network if isinstance(network, bytes) else str(network)
        return onnxruntime.InferenceSession(held, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        # ONNX Runtime's own exceptions have no common base.
        name = "the network" if isinstance(network, bytes) else network
        raise InputError(f"{name} cannot be loaded as an ONNX network: {short(error)}") from error


def network_digest(path: Path) -> str:
    """Return the SHA-256 of a network's file and of its files of weights, which lie in its folder."""
    import onnx

    if not path.is_file():
        raise InputError(f"there is no network {path}: check the name after onnx:")
    if path.stat().st_size > LARGEST_FILE:
        raise InputError(f"{path} is larger than {LARGEST_FILE >> 30} GiB, more than an ONNX file can be")
    try:
        model = onnx.load(str(path), load_external_data=False)
        total = hashlib.sha256(path.read_bytes())
    except Exception as error:
        # Protobuf's exceptions have no common base with those of the disk.
        raise InputError(f"{path} cannot be read as an ONNX network: {short(error)}") from error
    for location in sorted(set(_external_files(model.graph))):
        beside = (path.parent / location).resolve()
        if not beside.is_relative_to(path.parent.resolve()):
            raise InputError(f"{path} wants weights from {location!r}, outside its folder: refused")
        if not beside.is_file():
            raise InputError(f"{path} wants weights from {location!r}, which is not beside it")
        with beside.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def _external_files(graph: Any) -> Iterator[str]:
    """Return places of weights outside the file, in this graph and in those inside its nodes."""
    tensors = [*graph.initializer]
    for sparse in graph.sparse_initializer:
        tensors += [sparse.values, sparse.indices]
    for node in graph.node:
        for attribute in node.attribute:
            tensors += [attribute.t, *attribute.tensors]
            for inner in (attribute.g, *attribute.graphs):
                yield from _external_files(inner)
    for tensor in tensors:
        if tensor.data_location == 1:
            yield from (entry.value for entry in tensor.external_data if entry.key == "location")
