"""Errors of the pipeline; each message is one sentence that names the file, the value and what to do."""

from __future__ import annotations

from typing import Any


def brief(error: BaseException) -> str:
    """Return the kind of an error and what it says, in a line of at most some hundred letters."""
    said = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


class PipelineError(Exception):
    """Base of everything that the pipeline raises on purpose."""


class ConfigError(PipelineError, ValueError):
    """An option has a value, or is part of a combination, that cannot work."""


class InputError(PipelineError, ValueError):
    """Images, tables or feature files that cannot be used as they are."""


class ImageRejectedError(InputError):
    """One image that cannot be used; the message is the reason, and the job continues without it."""


class RejectedShareError(InputError):
    """More images than allowed were unreadable."""


class ClusterError(PipelineError, RuntimeError):
    """The Dask cluster did not start, did not answer in time or lost what it needed."""


class InterruptedRunError(PipelineError, RuntimeError):
    """The run stopped before its end; what it had reached is saved and can be resumed."""


def is_stop(error: BaseException) -> bool:
    """Return whether somebody stopped the work, rather than a fault."""
    interrupted = isinstance(error, InterruptedRunError) and not isinstance(error.__cause__, Exception)
    return interrupted or isinstance(error, KeyboardInterrupt)


class NotStoredError(PipelineError, OSError):
    """What was computed could not be stored; `result` is what it is."""

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class MissingExtraError(PipelineError, ImportError):
    """An optional package is needed and not installed."""


class GuardError(PipelineError, ValueError):
    """A guard of the registry stands against what was asked for."""


class CertificateMismatchError(PipelineError, ArithmeticError):
    """What is stored of a model contradicts itself, so no certificate can be given."""
