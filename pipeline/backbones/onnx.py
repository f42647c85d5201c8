"""Any exported network through ONNX Runtime, on one thread of the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from topline.pipeline.backbones.base import FeatureFunction, refuse_options
from topline.pipeline.backbones.onnx_session import (
    INPUT_TYPES,
    NetworkFunction,
    network_digest,
    open_session,
)
from topline.pipeline.backbones.preprocessing import Preprocessing, read_sidecar
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.options import BackboneConfig

OPTIONS = frozenset(
    {"resize", "crop", "mean", "std", "layout", "channels", "interpolation", "input_name", "output_name"}
)


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
        return NetworkFunction(
            session,
            self.file,
            self.preprocessing,
            self.input_name,
            self.output_name,
            self.input_type,
            at_once=self.fixed_batch,
            fixed=self.fixed_batch is not None,
        )


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
