"""Tensors out of a file of PyTorch's, without PyTorch, and without running anything that the file says.

PyTorch's first format (before 1.6) is five pickles and then the numbers of each storage.  A pickle is a
program, and Python's own reader calls what it names.  This one knows the operations that files of weights are
made of and calls nothing; any other operation, and every name that is not a tensor's or a storage's, is
refused.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.backbones.base import short
from topline.pipeline.errors import InputError

DICTIONARY, TENSOR = "collections OrderedDict", "torch._utils _rebuild_tensor_v2"

_DTYPES = {
    "Float": "<f4", "Double": "<f8", "Half": "<f2", "Long": "<i8", "Int": "<i4", "Short": "<i2",
    "Char": "|i1", "Byte": "|u1", "Bool": "|b1",
}  # fmt: skip
KINDS = MappingProxyType({f"torch {kind}Storage": dtype for kind, dtype in _DTYPES.items()})


class Storage(NamedTuple):
    """Numbers of one type that come after the pickles."""

    key: str
    dtype: str
    size: int


class Tensor(NamedTuple):
    """A view of a storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Name(NamedTuple):
    """A name that is not called."""

    text: str


_MARK = object()
_PLAIN = frozenset({"BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE"})
_CONSTANTS: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "MARK": lambda: _MARK,
    "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple,
}  # fmt: skip
_TUPLES = MappingProxyType({"TUPLE": None, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3})


def pickled_values(file: BinaryIO) -> Any:
    """Return what the next pickle in a file holds; `ValueError` for what weights are not made of."""
    stack: list[Any] = []
    memory: dict[Any, Any] = {}
    try:
        for operation, argument, _ in pickletools.genops(file):
            name = operation.name
            if name == "STOP":
                return stack.pop()
            if name in _PLAIN:
                stack.append(argument)
            elif name in _CONSTANTS:
                stack.append(_CONSTANTS[name]())
            elif name in ("BINPUT", "LONG_BINPUT"):
                memory[argument] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(memory[argument])
            elif name != "PROTO":
                _work(name, argument, stack)
    except (IndexError, KeyError, TypeError, StopIteration, OverflowError) as error:
        raise ValueError(f"its pickle is damaged ({type(error).__name__})") from error
    raise ValueError("its pickle has no end")


def _work(name: str, argument: Any, stack: list[Any]) -> None:
    """Do what an operation does with the values on the stack."""
    if name in _TUPLES:
        stack.append(tuple(_taken(stack, _TUPLES[name])))
    elif name in ("SETITEM", "SETITEMS"):
        values = _taken(stack, 2 if name == "SETITEM" else None)
        _top(stack, dict).update(zip(values[::2], values[1::2], strict=True))
    elif name in ("APPEND", "APPENDS"):
        values = _taken(stack, 1 if name == "APPEND" else None)
        _top(stack, list).extend(values)
    elif name == "GLOBAL":
        if argument not in (DICTIONARY, TENSOR, *KINDS):
            raise ValueError(f"it names {argument.replace(' ', '.')}, and only tensors are read")
        stack.append(_Name(argument))
    elif name == "BINPERSID":
        stack.append(_storage(*stack.pop()))
    elif name == "REDUCE":
        stack.append(_made(*_taken(stack, 2)))
    elif name == "BUILD":
        # What a dictionary is said to know besides its items is forgotten.
        stack.pop()
        _top(stack, dict)
    else:
        raise ValueError(f"it has the operation {name}, and only tensors are read")


def _taken(stack: list[Any], count: int | None) -> list[Any]:
    """Take the last values off the stack: so many, or all since the last mark."""
    if count is not None:
        return [stack.pop() for _ in range(count)][::-1]
    place = next(i for i in range(len(stack) - 1, -1, -1) if stack[i] is _MARK)
    values = stack[place + 1 :]
    del stack[place:]
    return values


def _top(stack: list[Any], kind: type[Any]) -> Any:
    if not isinstance(stack[-1], kind):
        raise ValueError(f"it changes a {type(stack[-1]).__name__} as if it were a {kind.__name__}")  # noqa: TRY004
    return stack[-1]


def _storage(mark: Any, kind: Any, key: Any, _: Any, size: Any, view: Any) -> Storage:
    if mark != "storage" or not isinstance(kind, _Name) or type(size) is not int or view is not None:
        raise ValueError("it refers to something else than a storage")
    return Storage(str(key), KINDS[kind.text], size)


def _made(name: Any, arguments: Any) -> Any:
    """Return what a name and its arguments mean."""
    if name == _Name(DICTIONARY) and arguments == ():
        return {}
    if name != _Name(TENSOR):
        raise ValueError("it calls something else than a tensor or an empty dictionary")
    storage, offset, shape, strides = arguments[:4]
    if not isinstance(storage, Storage) or any(type(n) is not int for n in (offset, *shape, *strides)):
        raise ValueError("a tensor is made of something else than a storage and whole numbers")
    return Tensor(storage, offset, tuple(shape), tuple(strides))


MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001


def read_state(path: Path) -> dict[str, NDArray[Any]]:
    """Return the tensors of a file of PyTorch's first format by name; raise `InputError` for others."""
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
