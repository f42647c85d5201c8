"""A linear model as an ONNX graph: features or a picture in, scores and what follows from them out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.compose import add_prefix, merge_models
from onnx.utils import Extractor
from onnx.version_converter import convert_version

from topline.pipeline.backbones import backbone_of_spec
from topline.pipeline.backbones.onnx_graph import IR_VERSION, OPSET, OnnxGraph
from topline.pipeline.backbones.onnx_session import INPUT_TYPES, Network, NetworkBackbone, open_session
from topline.pipeline.backbones.preprocessing import REACH, Preprocessing
from topline.pipeline.calibration import calibration_of
from topline.pipeline.errors import ConfigError, InputError, PipelineError
from topline.pipeline.options import ExportOptions
from topline.pipeline.rows import (
    PCA,
    Bias,
    ChiSquared,
    Fourier,
    Hellinger,
    L2Normalize,
    Power,
    Standardize,
    StoredModel,
)
from topline.solvers.calibration import SETTLES, Calibration, ProbabilityMap, SetRule

#: Binary places of Pillow's weights.
_BITS = 22
# Protobuf holds no more than 2 GiB in a file.
LARGEST = (2 << 30) - (64 << 20)


def _standardize(graph: OnnxGraph, step: Standardize) -> None:
    centred = graph.add("Sub", graph.last, graph.constant(step.mean))
    graph.last = graph.add("Mul", centred, graph.constant(step.scale))


def _pca(graph: OnnxGraph, step: PCA) -> None:
    centred = graph.add("Sub", graph.last, graph.constant(step.mean))
    graph.last = graph.add("MatMul", centred, graph.constant(step.components))


def _l2(graph: OnnxGraph, step: L2Normalize) -> None:  # noqa: ARG001 - has nothing fitted
    norm = graph.add("ReduceL2", graph.last, graph.integers(1), keepdims=1)
    # A row of zeros stays zero.
    graph.last = graph.add("Div", graph.last, _positive(graph, norm))


def _positive(graph: OnnxGraph, values: str) -> str:
    tiny = np.array([[np.finfo(np.float32).tiny]], dtype=np.float32)
    return graph.add("Max", values, graph.constant(tiny))


def _scaled(graph: OnnxGraph, values: str, factor: float) -> str:
    return graph.add("Mul", values, graph.constant(np.array(factor, dtype=np.float32)))


def _power(graph: OnnxGraph, step: Power) -> None:
    powers = graph.add("Pow", graph.add("Abs", graph.last), graph.constant(step.exponent))
    graph.last = graph.add("Mul", graph.add("Sign", graph.last), powers)


def _hellinger(graph: OnnxGraph, step: Hellinger) -> None:  # noqa: ARG001 - has nothing fitted
    norm = graph.add("ReduceL1", graph.last, graph.integers(1), keepdims=1)
    shares = graph.add("Div", graph.last, _positive(graph, norm))
    graph.last = graph.add("Mul", graph.add("Sign", shares), graph.add("Sqrt", graph.add("Abs", shares)))


def _chi_squared(graph: OnnxGraph, step: ChiSquared) -> None:
    lengths = graph.add("Abs", graph.last)
    roots = graph.add("Mul", graph.add("Sign", graph.last), graph.add("Sqrt", lengths))
    logarithms = graph.add("Log", _positive(graph, lengths))
    copies = []
    for size, frequency, sine in step.factors:
        turned = graph.add("Sin" if sine else "Cos", _scaled(graph, logarithms, frequency))
        copies.append(graph.add("Mul", _scaled(graph, roots, size), turned))
    graph.last = graph.add("Concat", *copies, axis=1)


def _fourier(graph: OnnxGraph, step: Fourier) -> None:
    phases = graph.add("MatMul", graph.last, graph.constant(step.directions))
    cosines = graph.add("Cos", graph.add("Add", phases, graph.constant(step.offsets)))
    factor = np.array(np.sqrt(2.0 / len(step.offsets)), dtype=np.float32)
    graph.last = graph.add("Mul", cosines, graph.constant(factor))


def _bias(graph: OnnxGraph, step: Bias) -> None:  # noqa: ARG001 - has nothing fitted
    start, stop = (graph.integers(value) for value in (0, 1))
    rows = graph.add("Slice", graph.add("Shape", graph.last), start, stop)
    shape = graph.add("Concat", rows, graph.integers(1), axis=0)
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    ones = graph.add("ConstantOfShape", shape, value=one)
    graph.last = graph.add("Concat", graph.last, ones, axis=1)


OPERATORS: Mapping[str, Callable[[OnnxGraph, Any], None]] = {
    Standardize.name: _standardize, PCA.name: _pca, L2Normalize.name: _l2, Power.name: _power,
    Hellinger.name: _hellinger, ChiSquared.name: _chi_squared, Fourier.name: _fourier, Bias.name: _bias,
}  # fmt: skip


def _normalised(graph: OnnxGraph, preprocessing: Preprocessing, input_type: str) -> None:
    """Lay bytes (1, 3, crop, crop), RGB, out as the network takes them, as `Preprocessing.laid_out` does."""
    if input_type != "tensor(uint8)":
        values = graph.add("Cast", graph.last, to=TensorProto.FLOAT)
        values = graph.add("Div", values, graph.constant(np.float32(255)))
        mean, std = (
            graph.constant(np.asarray(three, np.float32)[:, None, None])
            for three in (preprocessing.mean, preprocessing.std)
        )
        graph.last = graph.add("Div", graph.add("Sub", values, mean), std)
    if preprocessing.channels == "BGR":
        graph.last = graph.add("Gather", graph.last, graph.integers(2, 1, 0), axis=1)
    if preprocessing.layout == "NHWC":
        graph.last = graph.add("Transpose", graph.last, perm=[0, 2, 3, 1])
    if input_type == "tensor(float16)":
        graph.last = graph.add("Cast", graph.last, to=TensorProto.FLOAT16)


def _square(graph: OnnxGraph, preprocessing: Preprocessing) -> None:
    """Resize pixels (h, w, 3) and cut (1, 3, crop, crop) out, to the bit as `Preprocessing.square` does."""
    add, crop = graph.add, preprocessing.crop
    whole, exact = {"to": TensorProto.INT64}, {"to": TensorProto.DOUBLE}
    planes = add("Unsqueeze", add("Transpose", graph.last, perm=[2, 0, 1]), graph.integers(0))
    shape = add("Shape", planes, start=2)
    sides = add("Cast", shape, **exact)
    scale = add("Div", float(preprocessing.shorter_side), add("ReduceMin", sides, keepdims=0))
    # `Round` goes to the even one of two neighbours, like Python's.
    resized = add("Max", add("Cast", add("Round", add("Mul", sides, scale)), **whole), crop)
    first = add("Div", add("Sub", resized, crop), 2)
    ratio = add("Max", add("Div", sides, add("Cast", resized, **exact)), 1.0)
    low, high = (
        add("Div", add("Cast", add("Mul", end, shape), **exact), add("Cast", resized, **exact))
        for end in (first, add("Add", first, crop))
    )
    # The rows, and all columns, that a filter may look at.
    reach = add("Mul", ratio, np.array([REACH, 1e9]))
    above = add("Cast", add("Max", add("Sub", low, reach), 0.0), **whole)
    below = add("Cast", add("Min", add("Ceil", add("Add", high, reach)), sides), **whole)
    planes = add("Slice", planes, above, below, graph.integers(2, 3))
    # Pillow keeps the ends of a box in float32.
    start = add("Cast", above, **exact)
    low, high = (add("Cast", add("Sub", end, start), to=TensorProto.FLOAT) for end in (low, high))
    step = add("Div", add("Cast", add("Sub", high, low), **exact), float(crop))
    along = add("Cast", low, **exact), step, add("Sub", below, above)
    # Columns first, rounded to bytes.
    for axis in (1, 0):
        begin, step, size = (add("Gather", values, axis) for values in along)
        middles = add("Add", begin, add("Mul", np.arange(crop) + 0.5, step))
        places, weights = _taps(graph, middles, add("Max", step, 1.0), size, preprocessing.interpolation)
        planes = _weighed(graph, planes, places, weights, axis)
    graph.last = planes


def _taps(graph: OnnxGraph, middles: str, width: str, size: str, kind: str) -> tuple[str, str]:
    """Return places (taps, crop) below `size`, and weights in units of 2^-22, of a filter of a `width`."""
    add, whole = graph.add, {"to": TensorProto.INT64}
    support = add("Mul", width, 2.0 if kind == "bicubic" else 1.0)
    first, last = (
        add("Cast", add("Add", add(side, middles, support), 0.5), **whole) for side in ("Sub", "Add")
    )
    taps = add("Add", add("Mul", add("Cast", add("Ceil", support), **whole), 2), 1)
    offsets = add("Unsqueeze", add("Range", 0, taps, 1), graph.integers(1))
    places = add("Add", add("Max", first, 0), offsets)
    away = add("Add", add("Sub", add("Cast", places, to=TensorProto.DOUBLE), middles), 0.5)
    x = add("Abs", add("Mul", away, add("Div", 1.0, width)))
    if kind == "bicubic":
        near = add("Mul", add("Sub", add("Mul", x, 1.5), 2.5), add("Mul", x, x))
        far = add("Add", add("Mul", add("Sub", x, 5.0), x), 8.0)
        far = add("Mul", add("Sub", add("Mul", far, x), 4.0), -0.5)
        value = add("Where", add("Less", x, 1.0), add("Add", near, 1.0), far)
    else:
        value = add("Sub", 1.0, x)
    there = add(
        "And", add("Less", places, add("Min", last, size)), add("Less", x, 2.0 if kind == "bicubic" else 1.0)
    )
    value = add("Where", there, value, 0.0)
    value = add("Mul", add("Div", value, add("ReduceSum", value, graph.integers(0))), float(1 << _BITS))
    weights = add("Cast", add("Add", value, add("Mul", add("Sign", value), 0.5)), to=TensorProto.INT32)
    return add("Min", places, add("Sub", size, 1)), weights


def _weighed(graph: OnnxGraph, planes: str, places: str, weights: str, axis: int) -> str:
    """Return planes (1, 3, h, w) summed along an axis, with `weights` (taps, crop) of those at `places`."""
    add, integer = graph.add, {"to": TensorProto.INT32}
    body = OnnxGraph("", prefix=f"{graph.prefix}axis{axis}_")
    number, goes_on, total = (f"{body.prefix}{name}" for name in ("number", "goes_on", "total"))
    column = body.add(
        "Cast", body.add("Gather", planes, body.add("Gather", places, number), axis=axis + 2), **integer
    )
    factors = body.add("Gather", weights, number)
    factors = body.add("Unsqueeze", factors, body.integers(1)) if axis == 0 else factors
    body.add_named("Add", [total, body.add("Mul", column, factors)], [f"{total}_after"])
    body.add_named("Identity", [goes_on], [f"{goes_on}_after"])
    kinds: tuple[Any, ...] = (
        (number, TensorProto.INT64, []),
        (goes_on, TensorProto.BOOL, []),
        (total, TensorProto.INT32, None),
    )
    inputs = [helper.make_tensor_value_info(*kind) for kind in kinds]
    outputs = [helper.make_tensor_value_info(f"{name}_after", *rest) for name, *rest in kinds[1:]]
    loop = helper.make_graph(body.nodes, "taps", inputs, outputs, body.constants)
    start = np.full((1, 1, 1, 1), 1 << (_BITS - 1), np.int32)
    count = add("Gather", add("Shape", places), 0)
    total = add("Loop", count, "", start, body=loop)
    shares = add("Div", add("Max", total, np.int32(0)), np.int32(1 << _BITS))
    return add("Cast", add("Min", shares, np.int32(255)), to=TensorProto.UINT8)


def _answers(
    graph: OnnxGraph, m: int, k: int, names: Sequence[str], known: Calibration, rule: SetRule | None
) -> list[Any]:
    """Add the best `k` classes, probabilities and sets behind `scores` (rows, m); return the outputs."""
    found = [("scores", TensorProto.FLOAT, m), ("top_scores", TensorProto.FLOAT, k)]
    found += [("top_classes", TensorProto.INT64, k), ("top_names", TensorProto.STRING, k)]
    graph.add_named("TopK", ["scores", graph.integers(k)], ["top_scores", "top_classes"], axis=1)
    graph.add_named("Gather", [graph.constant(np.array(names, dtype=object)), "top_classes"], ["top_names"])
    if known.probabilities is not None:
        _probabilities(graph, known.probabilities)
        found.append(("probabilities", TensorProto.FLOAT, m))
    if rule is not None:
        _sets(graph, m, rule)
        found.append(("sets", TensorProto.BOOL, m))
    return [helper.make_tensor_value_info(name, kind, ["rows", width]) for name, kind, width in found]


def _probabilities(graph: OnnxGraph, known: ProbabilityMap) -> None:
    """Add `probabilities` (rows, m), as `ProbabilityMap.probabilities` gives them."""
    z = graph.add("Add", _scaled(graph, "scores", known.slope), graph.constant(np.float32(known.offset)))
    if known.kind == "labels":
        graph.add_named("Sigmoid", [z], ["probabilities"])
        return
    if known.kind == "one_vs_all":
        # log sigmoid(z) = -log(1 + exp(-z))
        z = graph.add("Neg", graph.add("Softplus", graph.add("Neg", z)))
    graph.add_named("Softmax", [z], ["probabilities"], axis=1)


def _sets(graph: OnnxGraph, m: int, rule: SetRule) -> None:
    """Add `sets` (rows, m): classes whose conformity with a draw of 0 is at most their threshold."""
    graph.add_named("TopK", ["scores", graph.integers(m)], ["sorted", "order"], axis=1)
    before = graph.constant(np.arange(m, dtype=np.float32)[None])
    along = before
    if rule.probabilities is not None:
        p = graph.add("GatherElements", "probabilities", "order", axis=1)
        if isinstance(rule.weighing, float):
            ahead = graph.add("CumSum", p, graph.constant(np.array(1, np.int64)), exclusive=1)
            along = graph.add("Add", ahead, _scaled(graph, before, rule.weighing))
        else:
            others = graph.add("Sub", graph.constant(np.float32(1)), p)
            along = _scaled(graph, others, 1.0 - SETTLES)
            along = graph.add("Add", along, before) if rule.weighing is None else along
    # Rounded up: what float32 loses must not cost a set its right class.
    bounds = np.nextafter(rule.thresholds.astype(np.float32), np.float32(np.inf))
    zeros = graph.add("Mul", "scores", graph.constant(np.float32(0)))
    E = graph.add("ScatterElements", zeros, "order", graph.add("Add", zeros, along), axis=1)
    graph.add_named("LessOrEqual", [E, graph.constant(bounds[None])], ["sets"])


def _head(stored: StoredModel, options: ExportOptions) -> Any:
    """Return the model from `features` (rows, d) to scores and answers."""
    record, double = stored.model.record, options.input_type == "float64"
    known = calibration_of(stored)
    graph = OnnxGraph("features")
    if double:
        graph.last = graph.add("Cast", graph.last, to=TensorProto.FLOAT)
    for step in stored.transforms.steps:
        if step.name not in OPERATORS:
            raise InputError(f"the transform {step.name} has no ONNX form: export as npz instead")
        OPERATORS[step.name](graph, step)
    graph.add_named("MatMul", [graph.last, graph.constant(stored.W.astype(np.float32))], ["scores"])
    rule = set_rule(stored, options, known)
    k = options.top_k or min(5, record.m)
    outputs = _answers(graph, record.m, k, record.class_names, known, rule)
    kind = TensorProto.DOUBLE if double else TensorProto.FLOAT
    return graph.model(
        [helper.make_tensor_value_info("features", kind, ["rows", stored.input_width])], outputs
    )


def set_rule(stored: StoredModel, options: ExportOptions, known: Calibration) -> SetRule | None:
    """Return the rule of the sets that are asked for; `ConfigError` for a model that can give none."""
    if options.coverage is None:
        if options.per_class:
            raise ConfigError("--per-class is about sets: give their --coverage, such as 0.9")
        return None
    if stored.model.record.multilabel:
        raise ConfigError(
            f"model {stored.model.record.id} predicts several labels per row, and sets hold one right class:"
            " leave --coverage out"
        )
    return known.rule(options.coverage, per_class=options.per_class)


def _described_by(found: Network) -> Any:
    """Return the graph from `image` (height, width, 3) through the network to `features` (1, d)."""
    whole = (
        onnx.load(str(found.model)) if isinstance(found.model, Path) else onnx.load_from_string(found.model)
    )
    version = max([OPSET, *(one.version for one in whole.opset_import if not one.domain)])
    network = add_prefix(convert_version(whole, version), "network_")
    network.ir_version = max(IR_VERSION, network.ir_version)
    # Other outputs, such as logits, are left out.
    del network.graph.output[:]
    flat = helper.make_node("Flatten", [f"network_{found.output_name}"], ["flat"], axis=1)
    cast = helper.make_node("Cast", ["flat"], ["features"], to=TensorProto.FLOAT)
    network.graph.node.extend([flat, cast])
    network.graph.output.append(helper.make_tensor_value_info("features", TensorProto.FLOAT, [1, None]))
    front = OnnxGraph("image", prefix="picture_")
    _square(front, found.preprocessing)
    _normalised(front, found.preprocessing, found.input_type)
    front.add_named("Identity", [front.last], ["prepared"])
    source = helper.make_tensor_value_info("image", TensorProto.UINT8, ["height", "width", 3])
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(INPUT_TYPES[found.input_type]))
    target = helper.make_tensor_value_info("prepared", kind, None)
    opened = front.model([source], [target], version, network.ir_version)
    return merge_models(opened, network, [("prepared", f"network_{found.input_name}")])


def write_onnx(stored: StoredModel, path: Path, options: ExportOptions, about: Mapping[str, Any]) -> None:
    """Write the graph to `path`, its weights to a file beside it where one file cannot hold them.

    Input `features` (rows, d), or `image` (height, width, 3), the RGB bytes of one upright picture, which is
    a row of its own.  Outputs `scores` (rows, m); `top_scores`, `top_classes`, `top_names` (rows, k);
    `probabilities` (rows, m) where the model is calibrated; `sets` (rows, m) where a coverage is asked for.
    `about` is stored with it, as JSON texts.  Raises `InputError` for a transform without an ONNX form, and
    `ConfigError` for a backbone that is no network.
    """
    model = _head(stored, options)
    rule = set_rule(stored, options, calibration_of(stored))
    about = {**about, **({} if rule is None else {"sets": rule.facts()})}
    if options.with_backbone:
        described = _described_by(network_of(stored, options))
        version, ir_version = described.opset_import[0].version, described.ir_version
        model.opset_import[0].version, model.ir_version = version, ir_version
        model = merge_models(described, model, [("features", "features")])
    helper.set_model_props(model, {key: json.dumps(value) for key, value in about.items()})
    held = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    onnx.save_model(model, str(path), save_as_external_data=held > LARGEST, location=f"{path.name}.data")
    onnx.checker.check_model(str(path), full_check=True)


def network_of(stored: StoredModel, options: ExportOptions) -> Network:
    """Return the network that described the model's pictures; `ConfigError` where none can be exported."""
    record = stored.model.record
    spec = record.features.get("backbone")
    if not isinstance(spec, Mapping):
        raise ConfigError(f"model {record.id} was trained on imported features: leave --with-backbone out")
    if options.input_type != "float32":
        raise ConfigError("--input-type is about features, and --with-backbone takes pictures: leave one out")
    backbone = backbone_of_spec(spec)
    found = backbone.network() if isinstance(backbone, NetworkBackbone) else None
    if found is None or found.fixed_batch not in (None, 1):
        why = "is no ONNX network" if found is None else f"takes {found.fixed_batch} pictures at once"
        raise ConfigError(f"the backbone {backbone.name} {why}: leave --with-backbone out")
    return found


def run_onnx(path: Path, features: NDArray[Any]) -> NDArray[Any]:
    """Return the scores (rows, m) that ONNX Runtime computes of features (rows, d) by the file at `path`."""
    return np.asarray(_run(_session_of_rows(path), features, "scores")[0])


def _session_of_rows(path: Path) -> Any:
    """Return a session from features on, also of a graph that begins with a picture."""
    session = open_session(path)
    if session.get_inputs()[0].name == "features":
        return session
    model = onnx.load(str(path))
    outputs = [one.name for one in model.graph.output]
    model.graph.value_info.append(
        helper.make_tensor_value_info("features", TensorProto.FLOAT, ["rows", None])
    )
    return open_session(bytes(Extractor(model).extract_model(["features"], outputs).SerializeToString()))


def _run(session: Any, features: NDArray[Any], *outputs: str) -> list[NDArray[Any]]:
    kind = np.float64 if session.get_inputs()[0].type == "tensor(double)" else np.float32
    return list(session.run(list(outputs), {"features": features.astype(kind)}))


#: Random rows and pictures that are compared, and by how much scores of a picture may be off.
TRIED, SIDES, PICTURE_CLOSE = 64, ((300, 400), (500, 333), (64, 64)), 1e-3


def check_onnx(stored: StoredModel, path: Path, options: ExportOptions) -> None:
    """Raise `PipelineError` where probabilities, sets or the features of pictures differ from the model's."""
    record, known = stored.model.record, calibration_of(stored)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(TRIED, stored.input_width)).astype(np.float32)
    scores = np.asarray(stored.transforms.apply(rows) @ stored.W)
    session = _session_of_rows(path)
    if known.probabilities is not None:
        (found,) = _run(session, rows, "probabilities")
        _refuse_difference(found, known.probabilities.probabilities(scores), 1e-3, "probabilities", record.id)
    rule = set_rule(stored, options, known)
    if rule is not None:
        (sets,) = _run(session, rows, "sets")
        if (rule.sets(scores, rng.random(TRIED)) & ~sets).any():
            raise PipelineError(
                f"the sets of the onnx export lack classes of model {record.id}: it was not kept"
            )
    if options.with_backbone:
        opened, whole = backbone_of_spec(record.features["backbone"]).open(), open_session(path)
        for sides in SIDES:
            picture = rng.integers(0, 256, (*sides, 3), dtype=np.uint8)
            ours = np.asarray(stored.transforms.apply(opened([picture])) @ stored.W)
            (found,) = whole.run(["scores"], {"image": picture})
            _refuse_difference(found, ours, PICTURE_CLOSE * float(np.abs(ours).max()), "scores", record.id)


def _refuse_difference(found: NDArray[Any], ours: NDArray[Any], most: float, what: str, model: str) -> None:
    off = float(np.abs(found - ours).max())
    if not off <= most:
        raise PipelineError(
            f"the {what} of the onnx export differ from those of model {model} by {off:.2e}: it was not kept"
        )
