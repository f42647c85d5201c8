"""Large arrays handed over between processes of one machine in memory, instead of over a connection.

A round of many parts sends W and sums of its size a hundred times.  Over TLS a megabyte takes about 0.9 ms to
each worker and as much back, mostly in reading its records of 16 KiB one by one, and one thread of the
coordinator does that for all workers.  Workers of our own cluster run on the coordinator's machine, so its
messages to them only say where an array lies.

It lies in a file without a name in memory (`memfd_create`), which belongs to one process.  Others of the same
user read it through /proc.  It is gone with its process, however that ends, and nothing is left behind.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, LocalCluster

from topline.solvers.errors import StateLostError
from topline.solvers.typing import FloatArray

#: Arrays of fewer bytes travel in the message.
SHARED_BYTES = 1 << 16


@dataclass(frozen=True)
class SharedArray:
    """Where an array lies: the process and its open file, first byte, and the array's form."""

    pid: int
    file: int
    offset: int
    shape: tuple[int, ...]
    dtype: str
    by_columns: bool

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize

    def taken(self) -> FloatArray:
        """Return a copy of the array; raises StateLostError if its process is gone."""
        array = np.empty(self.shape[::-1] if self.by_columns else self.shape, dtype=self.dtype)
        left = array.data.cast("B")
        try:
            with Path(f"/proc/{self.pid}/fd/{self.file}").open("rb", buffering=0) as file:
                file.seek(self.offset)
                while read := file.readinto(left):
                    left = left[read:]
        except OSError as error:
            raise StateLostError(f"process {self.pid} is gone with an array: {error}") from error
        if len(left):
            raise StateLostError(f"process {self.pid} no longer has an array of {self.nbytes} bytes")
        return array.T if self.by_columns else array


class SharedMemory:
    """Memory of this process in which others can read arrays, until it shares other ones."""

    def __init__(self) -> None:
        self._file = os.memfd_create("topline-arrays", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self._file)

    def shared(self, arrays: Mapping[Any, FloatArray]) -> dict[Any, FloatArray | SharedArray]:
        """Return the arrays, large ones as the places where they lie from now on."""
        found: dict[Any, FloatArray | SharedArray] = dict(arrays)
        offset = 0
        for name, array in arrays.items():
            if array.nbytes < SHARED_BYTES:
                continue
            by_columns = array.flags.f_contiguous and not array.flags.c_contiguous
            laid_out = np.ascontiguousarray(array.T if by_columns else array)
            left, place = laid_out.data.cast("B"), offset
            while len(left):
                written = os.pwrite(self._file, left, place)
                left, place = left[written:], place + written
            form = array.shape, array.dtype.str, by_columns
            found[name] = SharedArray(os.getpid(), self._file, offset, *form)
            offset = place
        return found


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


def readable(array: FloatArray | SharedArray) -> bool:
    """Return whether this process can read an array."""
    try:
        taken(array)
    except StateLostError:
        return False
    return True
