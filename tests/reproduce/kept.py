"""Finished pieces of a table in a folder, so that a run that was interrupted goes on where it stopped.

A piece is known by what it is computed from: its function, data, grids and seed.  It is not known by the code
of the function: after a change of code the folder has to go.
"""

from __future__ import annotations

import hashlib
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TypeVar

T = TypeVar("T")


@dataclass(eq=False)
class Kept:
    """Pieces in `folder`; `seconds` is what those took that were found there, on a processor."""

    folder: Path
    seconds: float = 0.0
    _lock: Lock = field(default_factory=Lock)

    def done(self, job: Callable[[], T]) -> T:
        """Give the result of a job, from the folder where it is there; otherwise it is done and put there."""
        path = self.folder / f"{hashlib.sha256(pickle.dumps(job)).hexdigest()}.pickle"
        if path.is_file():
            seconds, result = pickle.loads(path.read_bytes())
            with self._lock:
                self.seconds += seconds
            return result  # type: ignore[no-any-return]
        began = time.thread_time()
        result = job()
        unfinished = path.with_suffix(".part")
        unfinished.write_bytes(pickle.dumps((time.thread_time() - began, result)))
        unfinished.replace(path)
        return result
