"""A small convolutional network as an ONNX file, and the same in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]

SIDE = 12

# What the graph says of its preprocessing, as people write it who export a network.
IMAGENET = {"mean": "[0.485, 0.456, 0.406]", "std": "0.229, 0.224, 0.225", "channels": "RGB"}


def weights(channels: int = 3, features: int = 5) -> dict[str, Array]:
    rng = np.random.default_rng(3)
    return {
        "K": rng.normal(0, 0.3, (4, channels, 3, 3)).astype(np.float32),
        "c": rng.normal(0, 0.1, 4).astype(np.float32),
        "V": rng.normal(0, 0.5, (4, features)).astype(np.float32),
    }


def write_network(
    path: Path,
    *,
    layout: str = "NCHW",
    batch: int | str = "batch",
    side: int | str = SIDE,
    kind: int = TensorProto.FLOAT,
    external: str | None = None,
    metadata: Mapping[str, str] = IMAGENET,
) -> Path:
    """conv 3 x 3, ReLU, mean over pixels ("pooled", (b, 4, 1, 1)), linear ("features", (b, 5))."""
    shape = [batch, 3, side, side] if layout == "NCHW" else [batch, side, side, 3]
    nodes, image = [], "image"
    if kind != TensorProto.FLOAT:
        nodes.append(helper.make_node("Cast", [image], ["cast"], to=TensorProto.FLOAT))
        image = "cast"
    if layout == "NHWC":
        nodes.append(helper.make_node("Transpose", [image], ["planes"], perm=[0, 3, 1, 2]))
        image = "planes"
    nodes += [
        helper.make_node("Conv", [image, "K", "c"], ["maps"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["maps"], ["active"]),
        helper.make_node("GlobalAveragePool", ["active"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "V"], ["features"]),
    ]
    outputs = {"features": [batch, 5], "pooled": [batch, 4, 1, 1], "maps": [batch, 4, side, side]}
    tensors = [numpy_helper.from_array(array, name) for name, array in weights().items()]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("image", kind, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, s) for name, s in outputs.items()],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, dict(metadata))
    path.parent.mkdir(parents=True, exist_ok=True)
    if external is None:
        onnx.save(model, path)
    else:
        for tensor in model.graph.initializer:
            data = tensor.raw_data
            place = path.parent / external
            start = place.stat().st_size if place.exists() else 0
            with place.open("ab") as file:
                file.write(data)
            onnx.external_data_helper.set_external_data(tensor, external, offset=start, length=len(data))
            tensor.ClearField("raw_data")
        path.write_bytes(model.SerializeToString())
    return path


def pooled(images: Array) -> Array:
    """NumPy truth of "pooled" for inputs (b, 3, h, w), shape (b, 4)."""
    w = weights()
    b, _, height, width = images.shape
    padded = np.pad(images.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    total = np.zeros((b, 4, height, width))
    for i in range(3):
        for j in range(3):
            window = padded[:, :, i : i + height, j : j + width]
            total += np.einsum("bchw,oc->bohw", window, w["K"][:, :, i, j])
    return np.maximum(total + w["c"][:, None, None], 0).mean(axis=(2, 3))


def features(images: Array) -> Array:
    """NumPy truth of "features", shape (b, 5)."""
    return pooled(images) @ weights()["V"]
