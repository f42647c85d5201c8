"""One process compiles a kernel, and those beside it wait and load it.

Numba keeps compiled kernels on disk, but two processes that need the same one at the same time both compile
it, which takes up to a minute.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def share_compiling() -> None:
    """Make every kernel that is kept on disk be compiled by one process at a time."""
    from numba.core.caching import NullCache
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.dispatcher import Dispatcher

    folder = Path(tempfile.gettempdir(), f"topline-kernel-locks-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    genuine = Dispatcher.compile

    def compile_alone(self: Any, sig: Any) -> Any:
        if isinstance(self._cache, NullCache):
            return genuine(self, sig)
        name = f"{self.py_func.__code__.co_filename}:{self.py_func.__qualname__}"
        # Numba's own lock first: threads of one process never wait for each other's files, and between
        # processes a kernel is locked before those that it calls.
        with global_compiler_lock, _locked(folder / hashlib.sha256(name.encode()).hexdigest()):
            return genuine(self, sig)

    Dispatcher.compile = compile_alone


_held: dict[Path, int] = {}


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock of the kernel on a file; a kernel that calls itself comes here twice."""
    if path in _held:
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _held[path] = file.fileno()
        try:
            yield
        finally:
            del _held[path]
