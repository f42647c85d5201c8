"""Exit codes, and the one sentence that stands for an error."""

from __future__ import annotations

from topline.pipeline.errors import InterruptedRunError, PipelineError
from topline.pipeline.interrupts import Terminated

SUCCESS = 0
FAILURE = 1
BAD_INPUT = 2
SHORT_OF_TOLERANCE = 3
HELD = 73
RESUMABLE = 75
INTERRUPTED = 130
TERMINATED = 143


def _ours() -> tuple[type[Exception], ...]:
    """Return what is raised on purpose; imported late, for the solvers bring Numba with them."""
    from topline.solvers.errors import SolverError
    from topline.storage.errors import StorageError

    return PipelineError, StorageError, SolverError


def exit_code(error: BaseException) -> int:
    """Return the exit code of an error: whose fault it is, and whether the same command may succeed later."""
    if isinstance(error, InterruptedRunError):
        return RESUMABLE
    # Before any import, which the interrupt may have broken.
    if isinstance(error, KeyboardInterrupt):
        return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    from topline.storage.stores import LeaseHeldError

    if isinstance(error, LeaseHeldError):
        # Somebody else works on the store: the same command will succeed later.
        return HELD
    if isinstance(error, _ours()) and isinstance(error, (ValueError, FileNotFoundError, ImportError)):
        return BAD_INPUT
    return FAILURE


def error_facts(kind: str, message: str, code: int) -> dict[str, object]:
    """Return what --json says of an error."""
    return {"error": {"kind": kind, "message": message, "exit_code": code}}


def is_expected(error: BaseException) -> bool:
    """Whether an error has a sentence of its own; anything else is a fault in Topline."""
    if isinstance(error, (KeyboardInterrupt, MemoryError)):
        return True
    return isinstance(error, _ours()) or _disk_is_full(error)


def sentence(error: BaseException) -> str:
    """Return the error in one line."""
    if isinstance(error, KeyboardInterrupt):
        stopped = str(error) or "stopped by Ctrl-C"
        return f"{stopped}; what was stored is whole, and the same command goes on from there"
    if isinstance(error, MemoryError) and not isinstance(error, _ours()):
        return "out of memory: set --memory-limit to what the machine has, or lower --cache-bytes"
    if _disk_is_full(error) and not isinstance(error, _ours()):
        place = f" at {error.filename}" if isinstance(error, OSError) and error.filename else ""
        return f"no space is left on the disk{place}: free some and run the same command again"
    # OSError's own text starts with the number; what was raised on purpose has its sentence in args.
    text = str(error.args[0]) if isinstance(error, OSError) and len(error.args) == 1 else str(error)
    return " ".join(text.split()) or type(error).__name__


def _disk_is_full(error: BaseException) -> bool:
    from topline.storage.errors import FULL_DISK

    return isinstance(error, OSError) and error.errno in FULL_DISK
