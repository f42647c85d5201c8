"""Compiled functions that are compiled once, and not again at every level of calls.

Numba optimises a function, makes machine code of it and a wrapper for Python, and keeps all that on disk;
then the same again with what calls it, into which it is put in line, up to the function that Python calls.
Here a function that a compiled function calls is a part of that one: typed and translated once, and
optimised with what calls it, which is what becomes machine code and is kept.  A first fit takes little
more than half the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.registry import CPUDispatcher

#: How the names of the wrappers begin by which Python and pointers call a function.
_WRAPPERS = ("_ZN7cpython", "cfunc.")


class _PartLibrary(JITCodeLibrary):
    """Translated, and left to those whose part it is."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()  # type: ignore[no-untyped-call]
        self._finalized = True


class _WholeLibrary(JITCodeLibrary):
    """Called through wrappers alone, of which the function itself may become a part."""

    def _optimize_final_module(self) -> None:
        for function in self.get_defined_functions():  # type: ignore[no-untyped-call]
            if function.linkage.name == "external" and not function.name.startswith(_WRAPPERS):
                function.linkage = "internal"
        super()._optimize_final_module()  # type: ignore[no-untyped-call]


class _Compiler(CompilerBase):
    """Numba's own passes, with a library of another kind."""

    _library: ClassVar[type[JITCodeLibrary]]

    def define_pipelines(self) -> list[Any]:
        state = self.state
        # Into the wrapper, or the function that calls it.
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
    """A function as Python calls it, which is a part of the compiled functions that call it."""

    _cache: Any

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        super().__init__(function, targetoptions=options, pipeline_class=_CompileWhole)
        self._part = _Part(function, targetoptions=options, pipeline_class=_CompilePart)

    def __reduce__(self) -> str:  # type: ignore[override]
        # By name, as any other function: a worker finds its own.
        qualname: str = self.py_func.__qualname__
        return qualname

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return how a compiled function calls this one."""
        return self._part.get_call_template(args, kws)

    def get_overload(self, sig: Any) -> Any:
        """Return what a compiled function calls."""
        return self._part.get_overload(sig)


class _Part(CPUDispatcher):
    """The same function inside others, never called from Python."""

    def add_overload(self, cres: Any) -> None:
        self.overloads[tuple(cres.signature.args)] = cres
        # Any object that stands for it alone does for a key.
        self.targetctx.insert_user_function(cres.library, cres.fndesc, [cres.library])  # type: ignore[no-untyped-call]

    def get_overload(self, sig: Any) -> Any:
        found: Any = self.overloads[tuple(sig)]
        return found.library


class ByType:
    """A function of which compiled functions call the one for the type of their first argument.

    The choice is made when they are compiled and costs nothing when they run.

    Parameters
    ----------
    choices : the functions, compiled themselves, for named tuples of a class, or for None.
    """

    is_compiling: ClassVar[bool] = False

    def __init__(self, choices: Mapping[type, Callable[..., Any]]) -> None:
        self.choices = dict(choices)

    def __call__(self, first: Any, *rest: Any) -> Any:
        """Return what the function for the type of the first argument returns."""
        return self.choices[type(first)](first, *rest)

    @property
    def _numba_type_(self) -> types.Dispatcher:
        return types.Dispatcher(self)  # type: ignore[arg-type]

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return how a compiled function calls the function for these arguments."""
        return self._for(args).get_call_template(args, kws)

    def get_overload(self, args: Any) -> Any:
        """Return what a compiled function calls."""
        return self._for(args).get_overload(args)

    def _for(self, args: Any) -> Any:
        return self.choices[getattr(args[0], "instance_class", type(None))]
