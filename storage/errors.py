"""Errors of the storage; each message is one sentence that names the place and the mend."""

from __future__ import annotations


class StorageError(Exception):
    """Base of everything that the storage raises on purpose."""


class UnsupportedURLError(StorageError, ValueError):
    """A URL whose scheme or path cannot be opened as a store."""


class NotFoundError(StorageError, FileNotFoundError):
    """Nothing is stored under that name."""


class IntegrityError(StorageError, OSError):
    """Stored bytes are missing, cut short or changed."""


class FormatError(StorageError, ValueError):
    """Data of the wrong shape, type or version."""


class ConflictError(StorageError, OSError):
    """Somebody else has already written that name."""


class IncompleteError(StorageError, RuntimeError):
    """A dataset or model was begun and never finished."""


class DiskFullError(StorageError, OSError):
    """No room is left where the store lies."""
