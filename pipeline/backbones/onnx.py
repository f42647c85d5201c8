"""Any exported network through ONNX Runtime, on one thread of the CPU.

Sidecar, graph and flags say how images are prepared for it, and nothing is guessed: a wrong mean or order of
colours costs accuracy and shows nowhere, so what nobody says is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from topline.pipeline.backbones.base import FeatureFunction, refuse_options
from topline.pipeline.backbones.onnx_session import (
    INPUT_TYPES,
    Network,
    NetworkFunction,
    network_digest,
    open_session,
)
from topline.pipeline.backbones.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing, read_sidecar
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.options import BackboneConfig

#: What a sidecar may say besides the preprocessing.
NAMES = ("input_name", "output_name", "trained_on")

# Where nobody says it, it is asked for; the values are those of most networks for ImageNet.
_ASKED: Mapping[str, Any] = MappingProxyType(
    {"mean": IMAGENET_MEAN, "std": IMAGENET_STD, "crop": 224, "layout": "NCHW", "channels": "RGB"}
)

# Of ONNX's own metadata for images, as values of mean and std for pixels in 0..1, and as orders of colours.
_RANGES = MappingProxyType(
    {
        "NominalRange_0_255": {"mean": (0.0,) * 3, "std": (1 / 255,) * 3},
        "Normalized_0_1": {"mean": (0.0,) * 3, "std": (1.0,) * 3},
        "Normalized_1_1": {"mean": (0.5,) * 3, "std": (0.5,) * 3},
    }
)
_COLOURS = MappingProxyType({"Rgb8": {"channels": "RGB"}, "Bgr8": {"channels": "BGR"}})


def said_by_graph(metadata: Mapping[str, str], shape: Sequence[Any]) -> dict[str, Any]:
    """Return what a graph says of its input: by shape, a sidecar's keys and the standard image keys."""
    if len(shape) != 4:
        raise InputError(
            f"the network's input has shape {list(shape)}: images are (b, 3, h, w) or (b, h, w, 3)"
        )
    said: dict[str, Any] = {}
    if (shape[1] == 3) != (shape[3] == 3):
        said["layout"] = "NCHW" if shape[1] == 3 else "NHWC"
    side = shape[1 if shape[3] == 3 and shape[1] != 3 else 2]
    if isinstance(side, int):
        said["crop"] = side
    said |= _RANGES.get(metadata.get("Image.NominalPixelRange", ""), {})
    said |= _COLOURS.get(metadata.get("Image.BitmapPixelFormat", ""), {})
    names = (*Preprocessing.model_fields, "output_name", "trained_on")
    return said | {name: _value(metadata[name]) for name in names if name in metadata}


def _value(text: str) -> Any:
    """Read a value of metadata: JSON, numbers with commas between them, or text."""
    for written in (text, f"[{text}]"):
        try:
            return json.loads(written)
        except ValueError:
            continue
    return text


def refuse_unknown(values: Mapping[str, Any], file: str, *, takes_bytes: bool) -> None:
    """Raise `ConfigError` naming what nobody said of the preprocessing of images for the network `file`."""
    asked = {name: value for name, value in _ASKED.items() if name not in values}
    if takes_bytes:
        # Bytes are given to it as they are.
        asked = {name: value for name, value in asked.items() if name not in ("mean", "std")}
    if not asked:
        return
    flags = " ".join(
        f"--{name} {','.join(map(str, value)) if isinstance(value, tuple) else value}"
        for name, value in asked.items()
    )
    raise ConfigError(
        f"nothing says how images are prepared for {file}: {', '.join(asked)}; write them into {file}.json,"
        f" as {json.dumps(asked)}, or give {flags}, with the values that the network was trained with (these"
        " are those of most networks for ImageNet)"
    )


OPTIONS = frozenset(BackboneConfig.model_fields) - {"backbone", "checkpoint"}


@dataclass(frozen=True)
class OnnxNetwork:
    """A network in `file`, with its preprocessing; `sha256` covers the file and its external weights.

    Preprocessing and names come from the graph itself, from FILE.json beside it (keys of `Preprocessing`,
    input_name, output_name, trained_on), which wins over it, and from flags, which win over both.  An input
    of bytes gets them as they are.  The output is (b, dim), or (b, dim, 1, 1).
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
    side: int = 224
    trained_on: str | None = None

    @classmethod
    def from_config(cls, argument: str, config: BackboneConfig) -> Self:
        """Return the backbone for file, sidecar and flags; the network is tried on an empty image."""
        refuse_options(cls.name, config, OPTIONS)
        if not argument:
            raise ConfigError("the backbone onnx needs a file: write onnx:network.onnx")
        path = Path(argument).expanduser().absolute()
        network = _Loaded.from_file(path)
        name = config.input_name or network.sidecar.get("input_name")
        source = _chosen(network.session.get_inputs(), name, "input", path)
        said = said_by_graph(network.session.get_modelmeta().custom_metadata_map, source.shape)
        values = {**said, **network.sidecar, **config.preprocessing()}
        refuse_unknown(values, path.name, takes_bytes=source.type == "tensor(uint8)")
        return cls._make(network, values, f"{path.name}.json")

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """Return the backbone that gave `spec`; `InputError` where the file has changed since."""
        path = Path(str(spec["file"]))
        named = {name: spec[name] for name in NAMES if name in spec}
        known = {**spec["preprocessing"], **named}
        made = cls._make(_Loaded.from_file(path), known, "the stored specification")
        if made.sha256 != spec["sha256"]:
            raise InputError(
                f"{path} is not the network that made the features (SHA-256 {made.sha256[:12]}, then"
                f" {str(spec['sha256'])[:12]}): put that one back, or extract and train again"
            )
        return made

    @classmethod
    def _make(cls, network: _Loaded, known: Mapping[str, Any], place: str) -> Self:
        values = dict(known)
        names = {name: values.pop(name, None) for name in NAMES}
        source = _chosen(network.session.get_inputs(), names["input_name"], "input", network.path)
        target = _chosen(network.session.get_outputs(), names["output_name"], "output", network.path)
        if source.type not in INPUT_TYPES:
            raise InputError(f"the input {source.name} of {network.path} takes {source.type}, not an image")
        preprocessing = Preprocessing.from_values(values, place)
        batch = source.shape[0] if isinstance(source.shape[0], int) else None
        made = cls(
            str(network.path), network.sha256, preprocessing, source.name, target.name, 0, batch, source.type,
            preprocessing.shorter_side, names["trained_on"],
        )  # fmt: skip
        empty = np.zeros((preprocessing.crop, preprocessing.crop, 3), np.uint8)
        dim = NetworkFunction(network.session, made.file, made._described())([empty]).shape[1]
        return replace(made, dim=dim)

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
            **({} if self.trained_on is None else {"trained_on": self.trained_on}),
        }

    def about(self) -> str:
        """Return what they are."""
        images = self.preprocessing.words(normalise=self.input_type != "tensor(uint8)")
        trained = f"trained on {self.trained_on}" if self.trained_on else "whose training is not known here"
        return f"the output {self.output_name} of {Path(self.file).name}, {trained} (images: {images})"

    def open(self) -> FeatureFunction:
        """Return the loaded network; `InputError` where the file on this machine is another one."""
        network = self.network()
        return NetworkFunction(open_session(network.model), self.file, network)

    def network(self) -> Network:
        """Return the network in its file; `InputError` where the file on this machine is another one."""
        if network_digest(Path(self.file)) != self.sha256:
            raise InputError(f"{self.file} has changed since the job began, or differs on this machine")
        return self._described()

    def _described(self) -> Network:
        return Network(
            Path(self.file), self.preprocessing, self.input_name, self.output_name, self.input_type,
            self.fixed_batch,
        )  # fmt: skip


class _Loaded(NamedTuple):
    """A network that was just opened, and what lies beside it."""

    path: Path
    sha256: str
    session: Any
    sidecar: Mapping[str, Any]

    @classmethod
    def from_file(cls, path: Path) -> Self:
        sidecar = read_sidecar(path.with_name(path.name + ".json"))
        return cls(path, network_digest(path), open_session(path), sidecar)


def _chosen(there: Sequence[Any], name: str | None, what: str, path: Path) -> Any:
    """Return the input or output of that name, or the first one."""
    names = [one.name for one in there]
    if name is None:
        return there[0]
    if name not in names:
        raise InputError(f"{path} has no {what} {name!r}: it has {', '.join(names)}")
    return there[names.index(name)]
