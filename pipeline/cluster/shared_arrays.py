"""Large arrays handed over between processes of one machine in memory, instead of over a connection.

A round of many parts sends W and sums of its size a hundred times.  Over TLS a megabyte takes about 0.9 ms to
each worker and as much back, mostly in reading its records of 16 KiB one by one, and one thread of the
coordinator does that for all workers.  Workers of our own cluster run on the coordinator's machine, so its
messages to them only say where an array lies.

It lies in a file without a name in memory (`memfd_create`), which belongs to one process.  Others of the same
user read it through /proc.  It is gone with its process, however that ends, and nothing is left behind.  The
file begins with a mark that changes whenever its arrays do, so that nobody takes later ones for those of a
message.  Where the system refuses such a file, arrays travel in messages.
"""

from __future__ import annotations

import logging
import os
import secrets
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, LocalCluster

from topline.solvers.errors import StateLostError
from topline.solvers.typing import FloatArray

logger = logging.getLogger(__name__)

#: Arrays of fewer bytes travel in the message.
SHARED_BYTES = 1 << 16
# A mark is a random token of the file and the number of times that it was filled; arrays lie behind it.
_TOKEN_BYTES, _COUNT_BYTES = 16, 8
_FIRST = 64


@dataclass(frozen=True)
class SharedArray:
    """Where an array lies: the process, its open file with its mark, first byte, and the array's form."""

    pid: int
    file: int
    mark: bytes
    offset: int
    shape: tuple[int, ...]
    dtype: str
    by_columns: bool

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize

    def taken(self) -> FloatArray:
        """Return a copy of the array; raises StateLostError if it or its process is gone."""
        array = np.empty(self.shape[::-1] if self.by_columns else self.shape, dtype=self.dtype)
        left = array.data.cast("B")
        try:
            with Path(f"/proc/{self.pid}/fd/{self.file}").open("rb", buffering=0) as file:
                there = self._in(file)
                file.seek(self.offset)
                while there and (read := file.readinto(left)):
                    left = left[read:]
                # Again, as it may have been replaced meanwhile.
                there = there and not left and self._in(file)
        except OSError as error:
            raise StateLostError(f"process {self.pid} is gone with an array: {error}") from error
        if not there:
            raise StateLostError(f"process {self.pid} no longer has an array of {self.nbytes} bytes")
        return array.T if self.by_columns else array

    def _in(self, file: FileIO) -> bool:
        """Return whether a file still is the one with the array."""
        return os.pread(file.fileno(), len(self.mark), 0) == self.mark


class ArrayFile:
    """Memory of this process in which others can read arrays, until it shares other ones."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._token, self._count = secrets.token_bytes(_TOKEN_BYTES), 0
        self._refused = False

    def shared(self, arrays: Mapping[Any, FloatArray]) -> dict[Any, FloatArray | SharedArray]:
        """Return the arrays, large ones as the places where they lie until the next call.

        Returns all of them as they are once the system has refused the memory.
        """
        if not self._refused:
            try:
                return self._written(arrays)
            except OSError as error:
                self._refused = True
                if self._file is not None:
                    os.ftruncate(self._file, 0)
                logger.info("large arrays travel in messages, as memory to share is refused: %s", error)
        return dict(arrays)

    def _written(self, arrays: Mapping[Any, FloatArray]) -> dict[Any, FloatArray | SharedArray]:
        if self._file is None:
            self._file = os.memfd_create("topline-arrays", os.MFD_CLOEXEC)
            weakref.finalize(self, os.close, self._file)
        self._count += 1
        mark = self._token + self._count.to_bytes(_COUNT_BYTES)
        # Whoever reads meanwhile finds no mark, either before the copy or after it.
        _write(self._file, bytes(len(mark)), 0)
        found: dict[Any, FloatArray | SharedArray] = dict(arrays)
        offset = _FIRST
        for name, array in arrays.items():
            if array.nbytes < SHARED_BYTES:
                continue
            by_columns = array.flags.f_contiguous and not array.flags.c_contiguous
            laid_out = np.ascontiguousarray(array.T if by_columns else array)
            _write(self._file, laid_out.data.cast("B"), offset)
            form = array.shape, array.dtype.str, by_columns
            found[name] = SharedArray(os.getpid(), self._file, mark, offset, *form)
            offset += array.nbytes
        _write(self._file, mark, 0)
        return found


def _write(file: int, left: bytes | memoryview, place: int) -> None:
    """Write all bytes from a place of a file on."""
    while len(left):
        written = os.pwrite(file, left, place)
        left, place = left[written:], place + written


def taken(array: FloatArray | SharedArray) -> FloatArray:
    """Return an array of a message, whether it is there or lies in shared memory."""
    return array.taken() if isinstance(array, SharedArray) else array


def on_this_machine(client: Client) -> bool:
    """Return whether the workers of a client are processes of this machine, which can share memory."""
    cluster = client.cluster
    processes = isinstance(cluster, LocalCluster) and not cluster.scheduler_address.startswith("inproc://")
    return processes and can_share_memory()


def can_share_memory() -> bool:
    """Return whether this system has such memory."""
    return hasattr(os, "memfd_create")
