"""EfficientNet-Lite0 as an ONNX graph, written from the tensors of its PyTorch checkpoint.

Source: M. Tan, Q. V. Le, "EfficientNet: Rethinking model scaling for convolutional neural networks", 2019;
"Lite" leaves squeeze-and-excitation out and takes ReLU6.  The weights were TensorFlow's, whose padding "SAME"
is one longer at the end where it is odd.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tensors = Mapping[str, NDArray[Any]]

SIDE, FEATURES = 224, 1280
INPUT, OUTPUT = "images", "features"

# Of the batch normalisations, as the network was trained.
EPSILON = 1e-3

# Blocks and first stride of each stage; kernels and channels follow from the weights.
STAGES = ((1, 1), (2, 2), (2, 2), (3, 2), (3, 1), (4, 2), (1, 1))

_OPSET, _IR_VERSION = 17, 8


@dataclass(eq=False)
class _Layers:
    """Nodes and weights of a graph while they are added, one behind the other, and the side of the maps."""

    tensors: Tensors
    side: int = SIDE
    nodes: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)

    def convolution(
        self,
        source: str,
        name: str,
        norm: str,
        *,
        stride: int = 1,
        depthwise: bool = False,
        active: bool = True,
    ) -> str:
        """Add a convolution with its batch normalisation folded in, and ReLU6; return its output."""
        from onnx import helper, numpy_helper

        weight, bias = folded(self.tensors, name, norm)
        kernel = weight.shape[2]
        before, after = same_padding(self.side, kernel, stride)
        self.side = -(-self.side // stride)
        self.weights += [
            numpy_helper.from_array(weight, f"{name}.weight"),
            numpy_helper.from_array(bias, f"{name}.bias"),
        ]
        target = f"{name}.output"
        options: dict[str, Any] = {
            "group": len(weight) if depthwise else 1,
            "strides": [stride] * 2,
            "kernel_shape": [kernel] * 2,
        }
        options["pads"] = [before, before, after, after]
        self.nodes.append(
            helper.make_node("Conv", [source, f"{name}.weight", f"{name}.bias"], [target], **options)
        )
        if not active:
            return target
        self.nodes.append(helper.make_node("Clip", [target, "zero", "six"], [f"{name}.active"]))
        return f"{name}.active"

    def block(self, source: str, name: str, stride: int) -> str:
        """Add an inverted residual block; return its output."""
        from onnx import helper

        inner = source
        expand = self.tensors.get(f"{name}._expand_conv.weight")
        if expand is not None:
            inner = self.convolution(inner, f"{name}._expand_conv", f"{name}._bn0")
        inner = self.convolution(
            inner, f"{name}._depthwise_conv", f"{name}._bn1", stride=stride, depthwise=True
        )
        inner = self.convolution(inner, f"{name}._project_conv", f"{name}._bn2", active=False)
        entered = len(self.tensors[f"{name}._depthwise_conv.weight"]) if expand is None else expand.shape[1]
        if stride > 1 or entered != len(self.tensors[f"{name}._project_conv.weight"]):
            return inner
        self.nodes.append(helper.make_node("Add", [inner, source], [f"{name}.output"]))
        return f"{name}.output"


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
    from onnx import TensorProto, helper, numpy_helper

    layers = _Layers(tensors)
    layers.weights = [
        numpy_helper.from_array(np.array(value, np.float32), name)
        for name, value in (("zero", 0), ("six", 6))
    ]
    found = layers.convolution(INPUT, "_conv_stem", "_bn0", stride=2)
    number = 0
    for repeats, stride in STAGES:
        for repeat in range(repeats):
            found = layers.block(found, f"_blocks.{number}", stride if repeat == 0 else 1)
            number += 1
    found = layers.convolution(found, "_conv_head", "_bn1")
    layers.nodes.append(helper.make_node("GlobalAveragePool", [found], ["pooled"]))
    layers.nodes.append(helper.make_node("Flatten", ["pooled"], [OUTPUT]))
    graph = helper.make_graph(
        layers.nodes,
        "efficientnet_lite0",
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", FEATURES])],
        layers.weights,
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
        producer_name="topline",
    )
    return bytes(model.SerializeToString(deterministic=True))
