"""Tensors out of a file of PyTorch's, without PyTorch, and without running anything that the file says.

PyTorch's first format (before 1.6) is five pickles and then the numbers of each storage.  A pickle is a
program, and Python's own reader calls what it names.  This one knows the operations that files of weights are
made of and calls nothing; any other operation, and every name that is not a tensor's or a storage's, is
refused.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.backbones.base import short
from topline.pipeline.errors import InputError

DICTIONARY, TENSOR = "collections OrderedDict", "torch._utils _rebuild_tensor_v2"

KINDS = MappingProxyType(
    {
        "torch FloatStorage": "<f4",
        "torch DoubleStorage": "<f8",
        "torch HalfStorage": "<f2",
        "torch LongStorage": "<i8",
        "torch IntStorage": "<i4",
        "torch ShortStorage": "<i2",
        "torch CharStorage": "|i1",
        "torch ByteStorage": "|u1",
        "torch BoolStorage": "|b1",
    }
)


@dataclass(frozen=True)
class Storage:
    """Numbers of one type that come after the pickles."""

    key: str
    dtype: str
    size: int


@dataclass(frozen=True)
class Tensor:
    """A view of a storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class _Name:
    """A name that is not called."""

    text: str


_MARK = object()


@dataclass(eq=False)
class _Machine:
    """The stack and the memory of a pickle while it is read."""

    stack: list[Any] = field(default_factory=list)
    memory: dict[int, Any] = field(default_factory=dict)

    def since_mark(self) -> list[Any]:
        """Take off the stack all that was put there since the last mark."""
        place = next(i for i in range(len(self.stack) - 1, -1, -1) if self.stack[i] is _MARK)
        values = self.stack[place + 1 :]
        del self.stack[place:]
        return values

    def last(self, count: int) -> list[Any]:
        """Take the last values off the stack."""
        values = [self.stack.pop() for _ in range(count)]
        return values[::-1]

    def set_items(self, values: list[Any]) -> None:
        """Put keys and values into the dictionary on the stack."""
        self._on_top(dict).update(zip(values[::2], values[1::2], strict=True))

    def append(self, values: list[Any]) -> None:
        """Put values into the list on the stack."""
        self._on_top(list).extend(values)

    def name(self, text: str) -> None:
        """Put a known name on the stack."""
        if text not in (DICTIONARY, TENSOR, *KINDS):
            raise ValueError(f"it names {text.replace(' ', '.')}, and only tensors are read")
        self.stack.append(_Name(text))

    def refer(self) -> None:
        """Put the storage on the stack that the tuple there means."""
        mark, kind, key, _, size, view = self.stack.pop()
        if mark != "storage" or not isinstance(kind, _Name) or type(size) is not int or view is not None:
            raise ValueError("it refers to something else than a storage")
        self.stack.append(Storage(str(key), KINDS[kind.text], size))

    def make(self) -> None:
        """Put what a name and its arguments mean on the stack."""
        name, arguments = self.last(2)
        if name == _Name(TENSOR):
            self.stack.append(_tensor(*arguments[:4]))
        elif name == _Name(DICTIONARY) and arguments == ():
            self.stack.append({})
        else:
            raise ValueError("it calls something else than a tensor or an empty dictionary")

    def build(self) -> None:
        """Forget what a dictionary is said to know besides its items."""
        self.stack.pop()
        self._on_top(dict)

    def _on_top(self, kind: type[Any]) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise ValueError(f"it changes a {type(self.stack[-1]).__name__} as if it were a {kind.__name__}")  # noqa: TRY004
        return self.stack[-1]


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any) -> Tensor:
    if not isinstance(storage, Storage) or any(type(n) is not int for n in (offset, *shape, *strides)):
        raise ValueError("a tensor is made of something else than a storage and whole numbers")
    return Tensor(storage, offset, tuple(shape), tuple(strides))


_Step = Callable[[_Machine, Any], Any]


def _made(make: Callable[[], Any]) -> _Step:
    return lambda machine, _: machine.stack.append(make())


def _tuple_of(count: int) -> _Step:
    return lambda machine, _: machine.stack.append(tuple(machine.last(count)))


_STEPS: Mapping[str, _Step] = MappingProxyType(
    {
        "PROTO": lambda _, __: None,
        **dict.fromkeys(
            ("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE"), lambda m, arg: m.stack.append(arg)
        ),
        "NONE": _made(lambda: None),
        "NEWTRUE": _made(lambda: True),
        "NEWFALSE": _made(lambda: False),
        "EMPTY_DICT": _made(dict),
        "EMPTY_LIST": _made(list),
        "EMPTY_TUPLE": _made(tuple),
        "MARK": _made(lambda: _MARK),
        "TUPLE1": _tuple_of(1),
        "TUPLE2": _tuple_of(2),
        "TUPLE3": _tuple_of(3),
        "TUPLE": lambda m, _: m.stack.append(tuple(m.since_mark())),
        **dict.fromkeys(("BINPUT", "LONG_BINPUT"), lambda m, arg: m.memory.update({arg: m.stack[-1]})),
        **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda m, arg: m.stack.append(m.memory[arg])),
        "SETITEM": lambda m, _: m.set_items(m.last(2)),
        "SETITEMS": lambda m, _: m.set_items(m.since_mark()),
        "APPEND": lambda m, _: m.append(m.last(1)),
        "APPENDS": lambda m, _: m.append(m.since_mark()),
        "GLOBAL": _Machine.name,
        "BINPERSID": lambda m, _: m.refer(),
        "REDUCE": lambda m, _: m.make(),
        "BUILD": lambda m, _: m.build(),
    }
)


def pickled_values(file: BinaryIO) -> Any:
    """Return what the next pickle in a file holds; `ValueError` for what weights are not made of."""
    machine = _Machine()
    try:
        for operation, argument, _ in pickletools.genops(file):
            if operation.name == "STOP":
                return machine.stack.pop()
            if operation.name not in _STEPS:
                raise ValueError(f"it has the operation {operation.name}, and only tensors are read")
            _STEPS[operation.name](machine, argument)
    except (IndexError, KeyError, TypeError, StopIteration, OverflowError) as error:
        raise ValueError(f"its pickle is damaged ({type(error).__name__})") from error
    raise ValueError("its pickle has no end")


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
