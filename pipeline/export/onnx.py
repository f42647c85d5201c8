"""A linear model and its transforms as an ONNX graph: features in, scores and the best classes out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from topline.pipeline.backbones.onnx_session import open_session
from topline.pipeline.errors import InputError
from topline.pipeline.rows import (
    PCA,
    Bias,
    ChiSquared,
    Fourier,
    Hellinger,
    L2Normalize,
    Power,
    Standardize,
    Transforms,
)

# Old enough for every runtime in use, new enough for ReduceL2 with axes as an input.
OPSET = 18
IR_VERSION = 9


@dataclass
class _Graph:
    """A graph that grows node by node; `last` names the value to continue from."""

    last: str
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def constant(self, values: NDArray[Any]) -> str:
        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"value{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name


def _standardize(graph: _Graph, step: Standardize) -> None:
    centred = graph.add("Sub", graph.last, graph.constant(step.mean))
    graph.last = graph.add("Mul", centred, graph.constant(step.scale))


def _pca(graph: _Graph, step: PCA) -> None:
    centred = graph.add("Sub", graph.last, graph.constant(step.mean))
    graph.last = graph.add("MatMul", centred, graph.constant(step.components))


def _l2(graph: _Graph, step: L2Normalize) -> None:  # noqa: ARG001 - has nothing fitted
    norm = graph.add("ReduceL2", graph.last, graph.constant(np.array([1], dtype=np.int64)), keepdims=1)
    # A row of zeros stays zero.
    graph.last = graph.add("Div", graph.last, _positive(graph, norm))


def _positive(graph: _Graph, values: str) -> str:
    tiny = np.array([[np.finfo(np.float32).tiny]], dtype=np.float32)
    return graph.add("Max", values, graph.constant(tiny))


def _scaled(graph: _Graph, values: str, factor: float) -> str:
    return graph.add("Mul", values, graph.constant(np.array(factor, dtype=np.float32)))


def _power(graph: _Graph, step: Power) -> None:
    powers = graph.add("Pow", graph.add("Abs", graph.last), graph.constant(step.exponent))
    graph.last = graph.add("Mul", graph.add("Sign", graph.last), powers)


def _hellinger(graph: _Graph, step: Hellinger) -> None:  # noqa: ARG001 - has nothing fitted
    norm = graph.add("ReduceL1", graph.last, graph.constant(np.array([1], dtype=np.int64)), keepdims=1)
    shares = graph.add("Div", graph.last, _positive(graph, norm))
    graph.last = graph.add("Mul", graph.add("Sign", shares), graph.add("Sqrt", graph.add("Abs", shares)))


def _chi_squared(graph: _Graph, step: ChiSquared) -> None:
    lengths = graph.add("Abs", graph.last)
    roots = graph.add("Mul", graph.add("Sign", graph.last), graph.add("Sqrt", lengths))
    logarithms = graph.add("Log", _positive(graph, lengths))
    copies = []
    for size, frequency, sine in step.factors:
        turned = graph.add("Sin" if sine else "Cos", _scaled(graph, logarithms, frequency))
        copies.append(graph.add("Mul", _scaled(graph, roots, size), turned))
    graph.last = graph.add("Concat", *copies, axis=1)


def _fourier(graph: _Graph, step: Fourier) -> None:
    phases = graph.add("MatMul", graph.last, graph.constant(step.directions))
    cosines = graph.add("Cos", graph.add("Add", phases, graph.constant(step.offsets)))
    factor = np.array(np.sqrt(2.0 / len(step.offsets)), dtype=np.float32)
    graph.last = graph.add("Mul", cosines, graph.constant(factor))


def _bias(graph: _Graph, step: Bias) -> None:  # noqa: ARG001 - has nothing fitted
    start, stop = (graph.constant(np.array([value], dtype=np.int64)) for value in (0, 1))
    rows = graph.add("Slice", graph.add("Shape", graph.last), start, stop)
    shape = graph.add("Concat", rows, graph.constant(np.array([1], dtype=np.int64)), axis=0)
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    ones = graph.add("ConstantOfShape", shape, value=one)
    graph.last = graph.add("Concat", graph.last, ones, axis=1)


OPERATORS: Mapping[str, Callable[[_Graph, Any], None]] = MappingProxyType(
    {
        Standardize.name: _standardize,
        PCA.name: _pca,
        L2Normalize.name: _l2,
        Power.name: _power,
        Hellinger.name: _hellinger,
        ChiSquared.name: _chi_squared,
        Fourier.name: _fourier,
        Bias.name: _bias,
    }
)


def build_onnx(
    W: NDArray[Any], transforms: Transforms, d: int, top_k: int, metadata: Mapping[str, Any]
) -> bytes:
    """Return the serialised graph.

    Input `features` (rows, d) float32; outputs `scores` (rows, m), `top_scores` and `top_classes`
    (rows, top_k).  `metadata` is stored with it, as JSON texts.  Raises `InputError` for a transform without
    an ONNX form.
    """
    graph = _Graph("features")
    for step in transforms.steps:
        if step.name not in OPERATORS:
            raise InputError(f"the transform {step.name} has no ONNX form: export as npz instead")
        OPERATORS[step.name](graph, step)
    m = W.shape[1]
    weights = graph.constant(W.astype(np.float32))
    graph.nodes.append(helper.make_node("MatMul", [graph.last, weights], ["scores"]))
    count = graph.constant(np.array([top_k], dtype=np.int64))
    graph.nodes.append(helper.make_node("TopK", ["scores", count], ["top_scores", "top_classes"], axis=1))
    outputs = (
        ("scores", TensorProto.FLOAT, m),
        ("top_scores", TensorProto.FLOAT, top_k),
        ("top_classes", TensorProto.INT64, top_k),
    )
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "topline",
            [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["rows", d])],
            [helper.make_tensor_value_info(name, kind, ["rows", width]) for name, kind, width in outputs],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="topline",
    )
    helper.set_model_props(model, {key: json.dumps(value) for key, value in metadata.items()})
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())


def run_onnx(path: str, features: NDArray[Any]) -> NDArray[Any]:
    """Return the scores (rows, m) that ONNX Runtime computes of features (rows, d) by the file at `path`."""
    session = open_session(Path(path))
    return np.asarray(session.run(["scores"], {"features": features.astype(np.float32)})[0])
