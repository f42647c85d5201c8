"""A file for what does not fit in memory, which vanishes with the process."""

from __future__ import annotations

import errno
import os
import tempfile
import weakref

from topline.solvers.core.row_packing import Bytes

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class SpillFile:
    """A file without a name in the folder for temporary files (TMPDIR).

    It is read and written, never mapped: mapped pages count as memory of the process.  Where nothing was
    written it takes no room.
    """

    def __init__(self) -> None:
        self._folder = tempfile.gettempdir()
        # A name would outlive a process that is killed.
        with tempfile.TemporaryFile(prefix="topline-") as file:
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)

    def write(self, place: int, packed: Bytes) -> None:
        """Write bytes from `place` on.

        Raises OSError with the folder where the disk is full.
        """
        rest = memoryview(packed.data)
        try:
            while len(rest):
                written = os.pwrite(self._descriptor, rest, place)
                rest, place = rest[written:], place + written
        except OSError as error:
            if error.errno in _FULL:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._folder) from error
            raise

    def read(self, place: int, out: Bytes) -> None:
        """Fill `out` with the bytes from `place` on, which were written before."""
        rest = memoryview(out.data)
        while len(rest):
            count = os.preadv(self._descriptor, [rest], place)
            if count == 0:
                raise OSError(errno.EIO, "a temporary file has become shorter", self._folder)
            rest, place = rest[count:], place + count

    def clear(self) -> None:
        """Give the room back."""
        os.ftruncate(self._descriptor, 0)
