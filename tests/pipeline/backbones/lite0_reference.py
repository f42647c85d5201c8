"""EfficientNet-Lite0 in float64 by NumPy and SciPy, from its paper's table; its weights as plain bytes."""

from __future__ import annotations

import pickletools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import correlate

Array = NDArray[np.float64]

# Table 1 of the paper less squeeze-and-excitation: expansion, channels, blocks, first stride, kernel.
TABLE = [(1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
         (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)]  # fmt: skip


def plain_weights(path: Path) -> dict[str, Array]:
    """Return float tensors by name, walking over the opcodes of the file: nothing is unpickled.

    For this one file: each tensor fills its storage; convolutions 1 x 1 and those of all channels are stored
    with the colours outermost or innermost, as their strides say.
    """
    with path.open("rb") as file:
        operations = [[(op.name, arg) for op, arg, _ in pickletools.genops(file)] for _ in range(5)]
        keys = [str(arg) for name, arg in operations[4] if name == "BINUNICODE"]
        storages = {}
        wide = _long_storages(operations[3])
        for key in keys:
            size = int(np.frombuffer(file.read(8), "<i8")[0])
            storages[key] = np.frombuffer(
                file.read(size * (8 if key in wide else 4)), "<i8" if key in wide else "<f4"
            )
    found: dict[str, Array] = {}
    for name, key, numbers in _tensors(operations[3]):
        values, rank = storages[key].astype(np.float64), (len(numbers) - 2) // 2
        shape, strides = numbers[2 : 2 + rank], numbers[2 + rank :]
        places = np.zeros(shape, dtype=np.int64)
        for axis, (count, step) in enumerate(zip(shape, strides, strict=True)):
            places += (np.arange(count) * step).reshape([-1 if i == axis else 1 for i in range(rank)])
        found[name] = values[places + numbers[1]]
    return found


def _memo(operations: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the operations with every reference replaced by what was remembered."""
    memory: dict[int, tuple[str, Any]] = {}
    plain = []
    for name, arg in operations:
        if name in ("BINPUT", "LONG_BINPUT"):
            memory[arg] = plain[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            plain.append(memory[arg])
        else:
            plain.append((name, arg))
    return plain


def _long_storages(operations: list[tuple[str, Any]]) -> set[str]:
    plain = _memo(operations)
    return {str(plain[i + 1][1]) for i, part in enumerate(plain) if part == ("GLOBAL", "torch LongStorage")}


def _tensors(operations: list[tuple[str, Any]]) -> list[tuple[str, str, list[int]]]:
    """Return name, storage and the numbers size, offset, shape, strides of each tensor of floats."""
    plain, found, name = _memo(operations), [], ""
    for i, (kind, arg) in enumerate(plain):
        if kind == "BINUNICODE" and plain[i + 1] == ("GLOBAL", "torch._utils _rebuild_tensor_v2"):
            name = str(arg)
        if (kind, arg) == ("GLOBAL", "torch FloatStorage"):
            end = next(j for j in range(i, len(plain)) if plain[j][0] == "NEWFALSE")
            numbers = [n for what, n in plain[i + 3 : end] if what.startswith("BININT")]
            found.append((name, str(plain[i + 1][1]), [int(n) for n in numbers]))
    return found


def reference_features(image: Array, weights: dict[str, Array]) -> Array:
    """Return the 1,280 pooled features of one input (3, 224, 224)."""
    x = _norm(_strided(_dense(image, weights["_conv_stem.weight"]), 2), weights, "_bn0", active=True)
    number = 0
    for expansion, channels, blocks, first, kernel in TABLE:
        for repeat in range(blocks):
            name, stride = f"_blocks.{number}", first if repeat == 0 else 1
            y, number = x, number + 1
            if expansion > 1:
                y = _norm(
                    _pointwise(y, weights[f"{name}._expand_conv.weight"]),
                    weights,
                    f"{name}._bn0",
                    active=True,
                )
            taps = weights[f"{name}._depthwise_conv.weight"][:, 0]
            assert taps.shape == (len(y), kernel, kernel)
            y = _strided(
                np.stack([_same(plane, tap, stride) for plane, tap in zip(y, taps, strict=True)]), stride
            )
            y = _norm(y, weights, f"{name}._bn1", active=True)
            y = _norm(_pointwise(y, weights[f"{name}._project_conv.weight"]), weights, f"{name}._bn2")
            assert len(y) == channels
            x = x + y if stride == 1 and len(x) == channels else y
    x = _norm(_pointwise(x, weights["_conv_head.weight"]), weights, "_bn1", active=True)
    return x.mean(axis=(1, 2))


def _pointwise(x: Array, weight: Array) -> Array:
    return np.tensordot(weight[:, :, 0, 0], x, axes=1)


def _dense(x: Array, weight: Array) -> Array:
    return np.stack(
        [sum(_same(plane, tap, 2) for plane, tap in zip(x, taps, strict=True)) for taps in weight]
    )


def _same(plane: Array, tap: Array, stride: int) -> Array:
    """Correlate at every pixel that is a window's centre in TensorFlow's "SAME", but for the stride.

    With stride 2 and an even side it pads (k - 3) / 2 before and one more behind, so that the first window is
    centred on pixel 1; with stride 1 on pixel 0.
    """
    assert plane.shape[0] % 2 == 0 or stride == 1
    return correlate(plane, tap, mode="constant")[stride - 1 :, stride - 1 :]


def _strided(x: Array, stride: int) -> Array:
    return x[:, ::stride, ::stride]


def _norm(x: Array, weights: dict[str, Array], name: str, *, active: bool = False) -> Array:
    gamma, beta, mean, variance = (
        weights[f"{name}.{part}"][:, None, None] for part in ("weight", "bias", "running_mean", "running_var")
    )
    y = (x - mean) / np.sqrt(variance + 1e-3) * gamma + beta
    return np.clip(y, 0.0, 6.0) if active else y
