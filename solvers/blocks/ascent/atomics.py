"""Counters that threads of compiled functions share: read, added to, waited for without the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.core import types
from numba.extending import intrinsic

from topline.solvers.jit_cache import jit
from topline.solvers.typing import Int64Array

#: Reads of a counter before the core is offered to others between two of them.
_SPINS = 2000
_COUNTERS = types.Array(types.int64, 1, "C")

#: As seen from compiled functions, to which the typing context is not passed.
_compiled: Any = intrinsic
_sched_yield: Any = types.ExternalFunction("sched_yield", types.int32())


def _pointer(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.gep(array.data, [args[1]])


def _load(typing_context: Any, counters: Any, place: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(context, builder, signature, args), "acquire", 8)

    return types.int64(_COUNTERS, types.intp), generate


def _add(typing_context: Any, counters: Any, place: Any, number: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _pointer(context, builder, signature, args), args[2], "acq_rel")

    return types.int64(_COUNTERS, types.intp, types.int64), generate


#: Return the counter at a place, and see whatever was written before it was last added to.
load: Callable[[Int64Array, int], int] = _compiled(_load)
#: Add a number to the counter at a place; return what it was.
add_and_get_old: Callable[[Int64Array, int, int], int] = _compiled(_add)


@jit
def wait_until(counters: Int64Array, place: int, least: int) -> None:
    """Wait until a counter has reached a number."""
    spins = 0
    while load(counters, place) < least:
        spins += 1
        if spins > _SPINS:
            _sched_yield()
