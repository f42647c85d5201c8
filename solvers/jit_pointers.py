"""Functions of a fixed signature, compiled separately on first use and called through a pointer.

A loop over rows that takes such a function is compiled once, whatever the function, and the function once,
whatever the loops.  The price is that it cannot be inlined, some nanoseconds per call.

A loop over rows in random order prefetches its next row (`fetch`): hardware cannot predict such rows, and
beyond the second-level cache waiting for a row takes longer than processing it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numba.experimental.function_type  # noqa: F401  (registers functions as arguments)
from llvmlite import ir
from numba.core import cgutils, config, types
from numba.core.types import Array, BaseTuple, FunctionType
from numba.extending import intrinsic, typeof_impl

from topline.solvers.jit_cache import jit

#: Whether everything runs as plain Python, by NUMBA_DISABLE_JIT.
_INTERPRETED: bool = getattr(config, "DISABLE_JIT", False)


class JitFunction:
    """A function to pass to compiled functions, or to call with arguments of exactly its types.

    Parameters
    ----------
    function : the function to compile.
    signature : Numba's types of its result and its arguments.
    """

    def __init__(self, function: Callable[..., Any], signature: Any) -> None:
        # It is called only through pointers.
        self._compiled: Any = jit(no_cpython_wrapper=True, no_cfunc_wrapper=False)(function)
        self.signature = signature
        self.__doc__, self.__module__ = function.__doc__, function.__module__
        self.__name__, self.__qualname__ = function.__name__, function.__qualname__

    def __call__(self, *arguments: Any) -> Any:
        """Return what the function returns."""
        return self._compiled(*arguments) if _INTERPRETED else _call(self, *arguments)

    def __wrapper_address__(self) -> int:
        """Return the address by which compiled functions call this one."""
        return self._address

    def __reduce__(self) -> str:
        return self.__qualname__

    @cached_property
    def jit_type(self) -> Any:
        """Its Numba type as an argument; cached, since making it takes longer than many calls."""
        return FunctionType(self.signature)

    @cached_property
    def _address(self) -> int:
        self._compiled.compile(self.signature)
        compiled = self._compiled.overloads[self.signature.args]
        return int(compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cfunc_wrapper_name))


@jit
def _call(function: JitFunction, *arguments: Any) -> Any:
    return function(*arguments)


@typeof_impl.register(JitFunction)
def _type_of(function: JitFunction, _: Any) -> Any:
    return function.jit_type


@intrinsic
def _borrowed(_: Any, value: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _without_owner(context, builder, signature.args[0], arguments[0])

    return value(value), build


def _without_owner(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    if isinstance(kind, BaseTuple):
        kinds: Any = kind
        values = cgutils.unpack_tuple(builder, value, len(kinds))  # type: ignore[no-untyped-call]
        parts = [_without_owner(context, builder, *pair) for pair in zip(kinds.types, values, strict=True)]
        return context.make_tuple(builder, kind, parts)
    if not isinstance(kind, Array):
        return value
    view = context.make_array(kind)(context, builder, value=value)
    view.meminfo = cgutils.get_null_value(view.meminfo.type)  # type: ignore[no-untyped-call]
    return view._getvalue()


def _itself(value: Any) -> Any:
    return value


#: In compiled functions: the same array, or tuple of arrays, without ownership.  Passing it on counts no
#: reference, which would take longer than the call.  Its owner must be given to `keep` after the last use.
borrowed: Any = _itself if _INTERPRETED else _borrowed


@jit
def keep(owners: Any) -> None:
    """Do nothing, but keep the arguments alive until this call."""


#: Bytes of a cache line, and bytes of a run after which hardware prefetching takes over.
_LINE, _SEEN = 64, 1024
#: Prefetch for reading, into all caches, of data.
_HOW = 0, 3, 1


def _at(_: Any, array: Any, place: Any, offset: Any) -> Any:  # noqa: ARG001
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        stride = cgutils.unpack_tuple(builder, view.strides)[0]  # type: ignore[no-untyped-call]
        address = builder.gep(
            builder.bitcast(view.data, byte), [builder.add(builder.mul(arguments[1], stride), arguments[2])]
        )
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        builder.call(fetch, [address, *(number(how) for how in _HOW)])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), build


#: The intrinsic as seen from compiled functions, which pass no typing context.
_compiled: Any = intrinsic
_fetch_at: Any = _compiled(_at)


@jit
def _fetch(array: Any, place: int, bytes_: int, first: int = 0) -> None:
    last = first + min(bytes_, _SEEN) - 1
    for offset in range(first, last, _LINE):
        _fetch_at(array, place, offset)
    _fetch_at(array, place, last)


def _wait_for(array: Any, place: int, bytes_: int, first: int = 0) -> None:
    pass


#: In compiled functions: (array, place, bytes_, first=0) prefetches that many bytes of array[place], starting
#: at its byte `first`.
fetch: Any = _wait_for if getattr(config, "DISABLE_JIT", False) else _fetch
