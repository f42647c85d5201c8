"""How images are prepared for a network in a file: what sidecar, graph and flags say, and nothing guessed.

A wrong mean or order of colours costs accuracy and shows nowhere, so what nobody says is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from topline.pipeline.backbones.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from topline.pipeline.errors import ConfigError, InputError

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
    """Return what a graph says of its input: by the shape, and by metadata named as a sidecar's keys.

    The standard keys Image.BitmapPixelFormat and Image.NominalPixelRange count too.
    """
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
