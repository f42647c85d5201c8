"""Compiled functions are as old as the sources they came from, all of them.

Numba keeps compiled functions beside the package and compiles one anew where its own file has changed.  It
does not look at the files of the functions that were compiled into it, so after an update an old function may
go by the new layout of another one's arguments, which ends in wrong numbers or none.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_STAMP = "kernels.sha256"


def forget_stale_cache(package: Path) -> bool:
    """Delete the compiled functions below `package` if the source of any changed since they were compiled.

    Returns whether there was something to delete.  A folder that cannot be written holds none: Numba keeps
    those of such a package elsewhere.
    """
    present = _digest_of_sources(package)
    stamp = package / "__pycache__" / _STAMP
    if stamp.is_file() and stamp.read_text(encoding="ascii") == present:
        return False
    if not os.access(package, os.W_OK):
        return False
    stale = [*package.rglob("__pycache__/*.nbi"), *package.rglob("__pycache__/*.nbc")]
    for compiled in stale:
        compiled.unlink(missing_ok=True)
    stamp.parent.mkdir(exist_ok=True)
    # In one step: processes that start together all come here, and none may read half a stamp.
    written = stamp.with_name(f"{_STAMP}.{os.getpid()}")
    written.write_text(present, encoding="ascii")
    written.replace(stamp)
    return bool(stale)


def _digest_of_sources(package: Path) -> str:
    digest = hashlib.sha256()
    for source in sorted(package.rglob("*.py")):
        text = source.read_bytes()
        if b"njit" in text:
            digest.update(f"{source.relative_to(package).as_posix()}\0".encode())
            digest.update(hashlib.sha256(text).digest())
    return digest.hexdigest()
