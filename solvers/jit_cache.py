"""Compilation by Numba on first call, cached on disk until sources change, and functions called by pointer.

Numba caches compiled functions beside the package, in NUMBA_CACHE_DIR, or in the user's cache folder where
the package is not writable.  It considers one current while the file defining it is unchanged, ignoring
inlined callees: after an update a stale one may use an old layout of its callee's arguments, giving wrong
numbers, or look for a module that is gone.  Here the key covers everything compiled, callees, their modules
and constants included, and neither the time nor the path of a file.

Processes that need the same function at the same time, such as a job's workers, would all compile it: here
one compiles, and the others wait and load it.

Numba optimises a function, makes machine code and a Python wrapper, and caches them; then does the same again
for each caller it is inlined into.  Here a function called by compiled functions is typed and translated once
and optimised only within its callers, up to the one that Python calls, which alone becomes cached machine
code.  A first fit takes little more than half the time.

A loop over rows that takes a `JitFunction` is compiled once, whatever the function, and the function once,
whatever the loops.  The price is that it cannot be inlined, some nanoseconds per call.
"""

from __future__ import annotations

import fcntl
import gc
import hashlib
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property, partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import IO, Any, ClassVar, TypeVar, overload

import numba.experimental.function_type  # noqa: F401  (registers functions as arguments)
from llvmlite import ir
from numba.core import cgutils, config, types
from numba.core.caching import FunctionCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher
from numba.core.types import Array, BaseTuple
from numba.extending import intrinsic, typeof_impl

#: Name prefixes of the wrappers called by Python and through pointers.
_WRAPPERS = ("_ZN7cpython", "cfunc.")
#: Seconds to wait for a process that compiles the same function, and after which that is said.
LOCK_SECONDS, TOLD_SECONDS = 300.0, 10.0


class _PartLibrary(JITCodeLibrary):
    """Translated code, optimised only within its callers."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()  # type: ignore[no-untyped-call]
        self._finalized = True


class _WholeLibrary(JITCodeLibrary):
    """A library called only through wrappers, into which the function may be inlined."""

    def _optimize_final_module(self) -> None:
        for function in self.get_defined_functions():  # type: ignore[no-untyped-call]
            if function.linkage.name == "external" and not function.name.startswith(_WRAPPERS):
                function.linkage = "internal"
        super()._optimize_final_module()  # type: ignore[no-untyped-call]


class _Compiler(CompilerBase):
    """Numba's own passes, with another kind of library."""

    _library: ClassVar[type[JITCodeLibrary]]

    def define_pipelines(self) -> list[Any]:
        state = self.state
        # Inline it into the wrapper or the calling function.
        state.flags.forceinline = True
        state.library = self._library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return [DefaultPassBuilder.define_nopython_pipeline(state)]  # type: ignore[no-untyped-call]


class _CompileWhole(_Compiler):
    _library = _WholeLibrary


class _CompilePart(_Compiler):
    _library = _PartLibrary

    def define_pipelines(self) -> list[Any]:
        flags = self.state.flags
        flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        return super().define_pipelines()


class Compiled(CPUDispatcher):
    """A function called from Python; compiled callers inline it."""

    _cache: Any

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        super().__init__(function, targetoptions=options, pipeline_class=_CompileWhole)
        self._part = _Part(function, targetoptions=options, pipeline_class=_CompilePart)

    def __reduce__(self) -> str:  # type: ignore[override]
        # By name, like any function: a worker finds its own.
        qualname: str = self.py_func.__qualname__
        return qualname

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return how a compiled function calls this one."""
        return self._part.get_call_template(args, kws)

    def get_overload(self, sig: Any) -> Any:
        """Return the function that compiled callers call."""
        return self._part.get_overload(sig)


class _Part(CPUDispatcher):
    """The same function inside others, never called from Python."""

    def add_overload(self, cres: Any) -> None:
        self.overloads[tuple(cres.signature.args)] = cres
        # Any unique object serves as the key.
        self.targetctx.insert_user_function(cres.library, cres.fndesc, [cres.library])  # type: ignore[no-untyped-call]

    def get_overload(self, sig: Any) -> Any:
        found: Any = self.overloads[tuple(sig)]
        return found.library


class ByType:
    """A function dispatched, in compiled code, on the type of its first argument: a named tuple or None.

    Dispatch among the compiled functions of `choices` happens at compile time and costs nothing at run time.
    """

    is_compiling: ClassVar[bool] = False

    def __init__(self, choices: Mapping[type, Callable[..., Any]]) -> None:
        self.choices = dict(choices)

    def __call__(self, first: Any, *rest: Any) -> Any:
        """Return the result of the function for the type of the first argument."""
        return self.choices[type(first)](first, *rest)

    @property
    def _numba_type_(self) -> types.Dispatcher:
        return types.Dispatcher(self)  # type: ignore[arg-type]

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return how a compiled function calls the function for these arguments."""
        return self._for(args).get_call_template(args, kws)

    def get_overload(self, args: Any) -> Any:
        """Return the function that compiled callers call."""
        return self._for(args).get_overload(args)

    def _for(self, args: Any) -> Any:
        return self.choices[getattr(args[0], "instance_class", type(None))]


logger = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])

# Without explicit fastmath a function takes that of its first caller.
_FLAGS: dict[str, Any] = {
    "nopython": True,
    "nogil": True,
    "error_model": "numpy",
    "no_cfunc_wrapper": True,
    "fastmath": False,
}
_said: list[str] = []


@overload
def jit(function: Function, /) -> Function: ...
@overload
def jit(**options: Any) -> Callable[[Function], Function]: ...
def jit(function: Any = None, /, **options: Any) -> Any:
    """Compile a function on first call without the GIL and cache it on disk; `options` go to `njit`."""
    if function is None:
        return lambda function: _kept(function, {**_FLAGS, **options})
    return _kept(function, _FLAGS)


def _kept(function: Any, options: dict[str, Any]) -> Any:
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        return function
    compiled = Compiled(function, options)
    # Cached functions are found again by the name of their module.
    if function.__module__ not in sys.modules:
        return compiled
    try:
        cache = SourceKeyedCache(compiled)
    except RuntimeError:
        logger.debug("no folder for compiled functions can be written: each process compiles its own")
    else:
        compiled._cache = cache
        compiled.compile = partial(_compile_alone, cache, compiled.compile)  # type: ignore[method-assign]
    return compiled


def _compile_alone(cache: SourceKeyedCache, compile_or_load: Callable[[Any], Any], signature: Any) -> Any:
    # Take Numba's own lock first, so that threads of one process never wait for each other's files; between
    # processes a function is locked before its callees.
    with global_compiler_lock, cache.alone(), _garbage_left():
        return compile_or_load(signature)


@contextmanager
def _garbage_left() -> Iterator[None]:
    # A compiler makes hundreds of thousands of objects, hardly any of them garbage; full collections would
    # take a sixth of its time.
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _lock(file: IO[bytes], path: Path) -> None:
    """Lock a file, or go on without after `LOCK_SECONDS`, as a process that holds it may be stopped."""
    begun, told = time.monotonic(), False
    while time.monotonic() - begun < LOCK_SECONDS:
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if not told and time.monotonic() - begun > TOLD_SECONDS:
            logger.warning("another process compiles %s: waiting up to %g s for it", path.stem, LOCK_SECONDS)
            told = True
        time.sleep(0.02)
    logger.warning("%s has been locked for %g s: this process compiles as well", path, LOCK_SECONDS)


class SourceKeyedCache(FunctionCache):
    """On-disk cache of compiled functions, keyed by their sources."""

    def __init__(self, dispatcher: Any) -> None:
        super().__init__(dispatcher.py_func)  # type: ignore[no-untyped-call]
        self._dispatcher = dispatcher
        self._keyed = False
        self._alone = False

    def alone(self) -> AbstractContextManager[None]:
        """Return a context that keeps other processes from compiling, loading or saving this function."""
        # A recursive function gets here twice.
        return nullcontext() if self._alone else self._locked()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        path = Path(self._cache_path, f"{self._impl.filename_base}.lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("ab")
        except OSError:  # Whoever cannot write there has nothing to share.
            yield
            return
        with file:  # A process that dies lets go of it as well.
            try:
                _lock(file, path)
            except OSError:
                logger.debug("%s cannot be locked: several processes may compile the same function", path)
            self._alone = True
            try:
                yield
            finally:
                self._alone = False

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the function for a signature, None if absent or older than its sources."""
        self._look_at_sources()
        found = super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        if found is None and not _said:
            _said.append(
                "compiling inner loops for this machine: some seconds, once for each loss and kind of"
                " features"
            )
            logger.warning(_said[0])
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save a function."""
        self._look_at_sources()
        super().save_overload(sig, data)  # type: ignore[no-untyped-call]

    def _look_at_sources(self) -> None:
        # Keyed on first call, since a module may define callees after the caller.
        if not self._keyed:
            self._cache_file._source_stamp = digest_of(self._dispatcher)
            self._keyed = True


def digest_of(dispatcher: Any) -> str:
    """Return a digest of everything compiled into a function: code, callees and constants."""
    digest = hashlib.sha256()
    seen: set[int] = set()
    waiting = [dispatcher]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        function = _function_of(one)
        # Cached code names the modules of its callees, which an update may have moved.
        where = function.__module__, function.__qualname__
        digest.update(_spelled((*where, getattr(one, "targetoptions", None))).encode())
        _add_code(digest, function.__code__)
        for name, value in _names_used(function):
            if isinstance(value, ByType):
                waiting.extend(value.choices.values())
            elif _function_of(value) is not None:
                waiting.append(value)
            elif isinstance(value, bool | int | float | str | tuple):
                digest.update(f"{name}={_spelled(value)};".encode())
    return digest.hexdigest()


def _function_of(value: Any) -> Any:
    """Return the Python function behind a compiled one, an intrinsic or itself; None for anything else."""
    if isinstance(value, ModuleType | type):
        return None
    for name in ("py_func", "_defn"):
        if hasattr(value, name):
            return getattr(value, name)
    return value if isinstance(value, FunctionType) else None


def _names_used(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values of a function's global names and closure, and of attributes of modules."""
    names = function.__code__.co_names
    for name in names:
        value = function.__globals__.get(name)
        yield name, value
        if isinstance(value, ModuleType) and not value.__name__.startswith(("numba", "numpy", "math")):
            for attribute in names:
                yield f"{name}.{attribute}", getattr(value, attribute, None)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name, cell.cell_contents


def _add_code(digest: Any, code: CodeType) -> None:
    digest.update(code.co_code)
    digest.update(repr((code.co_names, code.co_varnames, code.co_freevars)).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add_code(digest, constant)
        else:
            digest.update(_spelled(constant).encode())


def _spelled(value: Any) -> str:
    """Return a value as text; members of a set in an order that is the same in every process."""
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(_spelled, value)))}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_spelled, value))})"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{key!r}: {_spelled(entry)}' for key, entry in value.items()))}}}"
    return repr(value)


#: Whether everything runs as plain Python, by NUMBA_DISABLE_JIT.
_INTERPRETED: bool = getattr(config, "DISABLE_JIT", False)


class JitFunction:
    """A function to pass to compiled functions, or to call with arguments of exactly its types.

    `signature` holds Numba's types of its result and its arguments.
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
        return types.FunctionType(self.signature)

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


#: In compiled functions: the same array, or tuple of arrays, without ownership.  Passing it on counts no
#: reference, which would take longer than the call.  Its owner must be given to `keep` after the last use.
borrowed: Any = (lambda value: value) if _INTERPRETED else _borrowed


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


#: In compiled functions: (array, place, bytes_, first=0) prefetches that many bytes of array[place], starting
#: at its byte `first`.
fetch: Any = (lambda *_: None) if _INTERPRETED else _fetch
