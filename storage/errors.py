"""Storage errors; each message is one sentence that names the place and the fix."""

from __future__ import annotations

import errno

#: OSError numbers that mean no room: on the disk, in a quota, or in a file's size limit.
FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class StorageError(Exception):
    """Base of all deliberate storage errors."""


class UnsupportedURLError(StorageError, ValueError):
    """A URL whose scheme or path cannot be opened as a store."""


class UnsafePathError(StorageError, ValueError):
    """A path that leaves its store."""


class MissingExtraError(StorageError, ImportError):
    """The driver package for this kind of store is not installed."""


class AccessError(StorageError, OSError):
    """The store cannot be reached, or denies access."""


class NotFoundError(StorageError, FileNotFoundError):
    """Nothing is stored under that name."""


class IntegrityError(StorageError, OSError):
    """Stored bytes are missing, cut short or changed."""


class FormatError(StorageError, ValueError):
    """Data of the wrong shape, type or version."""


class MismatchError(StorageError, ValueError):
    """What is stored belongs to other data or another configuration."""


class ConflictError(StorageError, OSError):
    """Another writer has already taken that name."""


class LeaseHeldError(ConflictError):
    """Another process holds a lease or a lock."""


class IncompleteError(StorageError, RuntimeError):
    """A dataset or model was begun and never finished."""


class DiskFullError(StorageError, OSError):
    """No room is left where the store lies."""
