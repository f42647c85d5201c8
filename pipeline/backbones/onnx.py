"""Any exported network through ONNX Runtime, on one thread of the CPU."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.backbones.base import FeatureFunction, Features, refuse_options, short
from topline.pipeline.backbones.preprocessing import Preprocessing, read_sidecar
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.images import Pixels
from topline.pipeline.options import BackboneConfig

OPTIONS = frozenset(
    {"resize", "crop", "mean", "std", "layout", "channels", "interpolation", "input_name", "output_name"}
)

# Protobuf itself holds no more; larger networks keep their weights in files beside.
LARGEST_FILE = 2 << 30

INPUT_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8}


@dataclass(frozen=True)
class OnnxNetwork:
    """A network in `file`, with its preprocessing; `sha256` covers the file and its external weights.

    Preprocessing and names come from FILE.json beside it (keys of `Preprocessing`, input_name, output_name)
    and from flags, which win; where neither says so, the crop is the input's own size.  An input of bytes
    gets them as they are.  The output is (b, dim), or (b, dim, 1, 1).
    """

    name: ClassVar[str] = "onnx"

    file: str
    sha256: str
    preprocessing: Preprocessing
    input_name: str
    output_name: str
    dim: int
    fixed_batch: int | None = None
    input_type: str = "tensor(float)"
    side: int = field(default=224)

    @classmethod
    def from_config(cls, argument: str, config: BackboneConfig) -> Self:
        """Return the backbone for file, sidecar and flags; the network is tried on an empty image."""
        refuse_options(cls.name, config, OPTIONS)
        if not argument:
            raise ConfigError("the backbone onnx needs a file: write onnx:network.onnx")
        path = Path(argument).expanduser().absolute()
        sidecar = read_sidecar(path.with_name(path.name + ".json"))
        return cls._make(path, sidecar, config.preprocessing(), f"{path.name}.json")

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """Return the backbone that gave `spec`; `InputError` where the file has changed since."""
        path = Path(str(spec["file"]))
        values = {
            **spec["preprocessing"],
            "input_name": spec["input_name"],
            "output_name": spec["output_name"],
        }
        made = cls._make(path, values, {}, "the stored specification")
        if made.sha256 != spec["sha256"]:
            raise InputError(
                f"{path} is not the network that made the features (SHA-256 {made.sha256[:12]}, then"
                f" {str(spec['sha256'])[:12]}): put that one back, or extract and train again"
            )
        return made

    @classmethod
    def _make(cls, path: Path, sidecar: Mapping[str, Any], chosen: Mapping[str, Any], place: str) -> Self:
        digest = network_digest(path)
        session = open_session(path)
        values = dict(sidecar)
        names = {key: values.pop(key, None) for key in ("input_name", "output_name")}
        names |= {key: value for key, value in chosen.items() if key in names}
        source = _chosen(session.get_inputs(), names["input_name"], "input", path)
        target = _chosen(session.get_outputs(), names["output_name"], "output", path)
        if source.type not in INPUT_TYPES:
            raise InputError(f"the input {source.name} of {path} takes {source.type}, not an image")
        values |= {key: value for key, value in chosen.items() if key not in names}
        values.setdefault("layout", _layout(source.shape))
        side = source.shape[2 if values["layout"] == "NCHW" else 1]
        if isinstance(side, int):
            values.setdefault("crop", side)
        preprocessing = Preprocessing.from_values(values, place)
        batch = source.shape[0] if isinstance(source.shape[0], int) else None
        made = cls(
            str(path), digest, preprocessing, source.name, target.name, 0, batch, source.type,
            preprocessing.shorter_side,
        )  # fmt: skip
        empty = np.zeros((preprocessing.crop, preprocessing.crop, 3), np.uint8)
        dim = made._network(session)([empty]).shape[1]
        return cls(**{**vars(made), "dim": dim})

    def spec(self) -> dict[str, Any]:
        """Return file, digest, names and preprocessing."""
        return {
            "name": self.name,
            "file": self.file,
            "sha256": self.sha256,
            "input_name": self.input_name,
            "output_name": self.output_name,
            "dim": self.dim,
            "preprocessing": self.preprocessing.values(),
        }

    def open(self) -> FeatureFunction:
        """Return the loaded network; `InputError` where the file on this machine is another one."""
        if network_digest(Path(self.file)) != self.sha256:
            raise InputError(f"{self.file} has changed since the job began, or differs on this machine")
        return self._network(open_session(Path(self.file)))

    def _network(self, session: Any) -> FeatureFunction:
        kind = INPUT_TYPES[self.input_type]

        def features(images: Sequence[Pixels]) -> Features:
            batch = self.preprocessing.batch(images, normalise=kind is not np.uint8).astype(kind, copy=False)
            return np.concatenate([self._run(session, part) for part in self._parts(batch)])

        return features

    def _parts(self, batch: NDArray[Any]) -> Iterator[NDArray[Any]]:
        size = self.fixed_batch or len(batch)
        return (batch[start : start + size] for start in range(0, len(batch), size))

    def _run(self, session: Any, part: NDArray[Any]) -> Features:
        missing = (self.fixed_batch or len(part)) - len(part)
        filled = np.concatenate([part, np.repeat(part[:1], missing, axis=0)]) if missing else part
        try:
            found = np.asarray(session.run([self.output_name], {self.input_name: filled})[0])
        except Exception as error:
            # ONNX Runtime's own exceptions have no common base.
            raise InputError(
                f"{self.file} does not run on an input of shape {filled.shape}: {short(error)}"
            ) from error
        if found.ndim < 2 or found.shape[0] != len(filled) or np.prod(found.shape[2:], dtype=int) != 1:
            raise InputError(
                f"the output {self.output_name} of {self.file} has shape {found.shape}, not (b, dim):"
                " choose another with --output-name, or export the network with its pooling"
            )
        return found.reshape(len(filled), -1)[: len(part)].astype(np.float32)


def open_session(path: Path) -> Any:
    """Return a session of ONNX Runtime on one thread; `InputError` where it cannot run the file."""
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        # ONNX Runtime's own exceptions have no common base.
        raise InputError(f"{path} cannot be loaded as an ONNX network: {short(error)}") from error


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


def _chosen(there: Sequence[Any], name: str | None, what: str, path: Path) -> Any:
    """Return the input or output of that name, or the first one."""
    names = [one.name for one in there]
    if name is None:
        return there[0]
    if name not in names:
        raise InputError(f"{path} has no {what} {name!r}: it has {', '.join(names)}")
    return there[names.index(name)]


def _layout(shape: Sequence[Any]) -> str:
    if len(shape) != 4:
        raise InputError(
            f"the network's input has shape {list(shape)}: images are (b, 3, h, w) or (b, h, w, 3)"
        )
    return "NHWC" if shape[3] == 3 and shape[1] != 3 else "NCHW"
