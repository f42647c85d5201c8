"""Finished pieces of a table in a folder, so that a run that was interrupted goes on where it stopped.

A piece is known by what it is computed from: its function, data, grids and seed.  It is not known by the code
of the function: after a change of code the folder has to go.  Pieces lie there as JSON, in the form that the
function says it returns, so that a folder from elsewhere holds figures and nothing that runs.  What has no
such form (the arrays of a curve) is computed every time: those tables take a minute or two.
"""

from __future__ import annotations

import hashlib
import pickle
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar, get_type_hints

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated
from pydantic_core import PydanticSerializationError

from topline.pipeline.errors import InputError

T = TypeVar("T")


@validated
class Piece(Generic[T]):
    """What a job gave, and the seconds of a processor that it took."""

    seconds: float
    result: T


@dataclass(eq=False)
class Kept:
    """Pieces in `folder`; `seconds` is what those took that were found there, on a processor."""

    folder: Path
    seconds: float = 0.0
    _lock: Lock = field(default_factory=Lock)

    def done(self, job: partial[T]) -> T:
        """Give the result of a job, from the folder where it is there; otherwise it is done and put there."""
        form = form_of(job)
        if form is None:
            return job()
        # Pickled for its digest alone: nothing is read back from it.
        path = self.folder / f"{hashlib.sha256(pickle.dumps(job)).hexdigest()}.json"
        if path.is_file():
            try:
                piece = form.validate_json(path.read_bytes())
            except ValidationError as error:
                raise InputError(f"{path} is no piece of this table: delete it ({error})") from None
            with self._lock:
                self.seconds += piece.seconds
            return piece.result
        began = time.thread_time()
        result = job()
        try:
            written = form.dump_json(Piece(time.thread_time() - began, result))
        except PydanticSerializationError:
            return result  # a read-only mapping, say: as with arrays
        unfinished = path.with_suffix(".part")
        unfinished.write_bytes(written)
        unfinished.replace(path)
        return result


def form_of(job: partial[T]) -> TypeAdapter[Piece[T]] | None:
    """Give how a job's results are written, by what it says it returns; None where JSON has no form."""
    returned: Any = get_type_hints(job.func)["return"]
    try:
        return TypeAdapter(Piece[returned])
    except PydanticSchemaGenerationError:
        return None
