"""Tensors out of a file of PyTorch's, without PyTorch, and without running anything that the file says.

PyTorch's first format (before 1.6) is five pickles and then the numbers of each storage; `pickled_values`
reads the pickles, and refuses every name that is not a tensor's or a storage's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.backbones.base import short
from topline.pipeline.backbones.torch_pickle import Storage, Tensor, pickled_values
from topline.pipeline.errors import InputError

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001


def read_state(path: Path) -> dict[str, NDArray[Any]]:
    """Return the tensors in a file of PyTorch's first format, by name; their strides are honoured.

    Raises `InputError` where the file holds anything but tensors by name, or is damaged.
    """
    try:
        with path.open("rb") as file:
            return _read(file)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} does not hold weights of PyTorch: {short(error)}") from error


def _read(file: BinaryIO) -> dict[str, NDArray[Any]]:
    magic, protocol, system = (pickled_values(file) for _ in range(3))
    if (magic, protocol) != (MAGIC, PROTOCOL) or not isinstance(system, dict):
        raise ValueError("it is not in PyTorch's format of five pickles and storages")
    if not system.get("little_endian", True):
        raise ValueError("its numbers are big-endian")
    found, keys = pickled_values(file), pickled_values(file)
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ValueError("it holds something else than tensors by name")
    if not isinstance(keys, list):
        raise ValueError("the list of its storages is missing")  # noqa: TRY004 - of the file, not of the call
    tensors: dict[str, Tensor] = {str(name): tensor for name, tensor in found.items()}
    storages = _numbers(file, keys, {tensor.storage.key: tensor.storage for tensor in tensors.values()})
    return {name: _array(tensor, storages[tensor.storage.key]) for name, tensor in tensors.items()}


def _numbers(file: BinaryIO, keys: Sequence[str], known: dict[str, Storage]) -> dict[str, NDArray[Any]]:
    """Return the numbers of each storage, which lie in the order of `keys`."""
    arrays = {}
    for key in keys:
        storage = known[key]
        (size,) = np.frombuffer(file.read(8), "<i8")
        data = file.read(storage.size * np.dtype(storage.dtype).itemsize)
        arrays[key] = np.frombuffer(data, storage.dtype)
        if not size == storage.size == len(arrays[key]):
            raise ValueError(f"it is cut short, or a storage has {size} numbers and not {storage.size}")
    return arrays


def _array(tensor: Tensor, numbers: NDArray[Any]) -> NDArray[Any]:
    if (
        len(tensor.shape) != len(tensor.strides)
        or min((*tensor.shape, *tensor.strides, tensor.offset), default=0) < 0
    ):
        raise ValueError(f"a tensor has the shape {tensor.shape} and the strides {tensor.strides}")
    last = tensor.offset + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.strides, strict=True))
    if 0 in tensor.shape:
        return np.zeros(tensor.shape, numbers.dtype)
    if last >= len(numbers):
        raise ValueError(f"a tensor reaches place {last} of a storage of {len(numbers)} numbers")
    steps = tuple(step * numbers.itemsize for step in tensor.strides)
    view = np.lib.stride_tricks.as_strided(numbers[tensor.offset :], tensor.shape, steps, writeable=False)
    return np.array(view)
