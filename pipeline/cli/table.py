"""What the command line prints and ends with: tables and numbers, one sentence an error, exit codes."""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from topline.pipeline.errors import InterruptedRunError, PipelineError
from topline.pipeline.interrupts import Terminated

#: Categories of characters that would end a line, or that a terminal or a stream cannot show.
_UNSEEN = frozenset({"Cc", "Cs", "Zl", "Zp"})
#: Characters in a line of a usual window.
WINDOW = 80
#: Marks that turn around the direction of what follows them.
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def visible(text: str) -> str:
    r"""Return `text` as it stands in a line: line ends, escape codes and the like as \n, \x1b and so on."""
    if text.isprintable():
        return text
    return "".join(
        repr(character)[1:-1]
        if character in _TURNING or unicodedata.category(character) in _UNSEEN
        else character
        for character in text
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str] = ()) -> list[str]:
    """Lay out rows under their heads; columns named in `spare` go, in order, until 80 characters hold it."""
    head, rows = [visible(name) for name in head], [[visible(entry) for entry in row] for row in rows]
    columns = list(zip(head, *rows, strict=True))
    for name in spare:
        if sum(max(map(len, column)) for column in columns) + 2 * len(columns) - 2 > WINDOW:
            columns = [column for column in columns if column[0] != name]
    widths = [max(map(len, column)) for column in columns]
    first, *others = zip(*columns, strict=True)
    lines = [first, tuple("-" * width for width in widths), *others]
    return [
        "  ".join(f"{entry:<{width}}" for entry, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def facts(pairs: Mapping[str, str]) -> list[str]:
    """Lay out names and values, one pair a line."""
    width = max(map(len, pairs), default=0)
    return [f"  {name:<{width}}  {value}" for name, value in pairs.items()]


def following(*commands: Sequence[str], hint: str = "", program: str = "topline") -> list[str]:
    """Return the commands that come next, quoted for a shell, with `hint`; capitals stand for words."""
    behind = f"   {hint}" if hint else ""
    lines = [f"{'':7} {shlex.join((program, *words))}{behind}" for words in commands]
    return ["", f"  next:{lines[0][7:]}", *lines[1:]] if lines else []


def metrics_line(evaluation: Mapping[str, Any]) -> str:
    """Return an evaluation's metrics in one line, headlines with intervals, without means over classes."""
    from topline.pipeline.evaluation import measured

    return "   ".join(
        f"{metric.column} {metric.text_in(evaluation) if metric.headline else metric.text(value)}"
        for metric, value in measured(evaluation)
        if metric.headline or getattr(metric, "class_weights", None) is None
    )


def counted(counts: Mapping[str, int]) -> str:
    """Numbers with what they count, those of nothing left out."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "none"


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
