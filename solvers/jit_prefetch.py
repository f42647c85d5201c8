"""What a compiled loop over rows in random order comes to next, fetched while it works on this one.

No hardware foresees such rows.  Where they do not fit the second-level cache a visit else waits for its row
for longer than it takes.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, config, types
from numba.extending import intrinsic

from topline.solvers.jit_cache import jit

#: Bytes that are fetched together, and bytes of a run behind which the hardware sees where a loop goes.
_LINE, _SEEN = 64, 1024
#: To be read, to be kept in all caches, data and no instructions.
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


#: As seen from compiled functions, to which the typing context is not passed.
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


#: Inside compiled functions: (array, place, bytes_, first=0) begins to fetch so many bytes of array[place],
#: from its byte `first` on.
fetch: Any = _wait_for if getattr(config, "DISABLE_JIT", False) else _fetch
