"""Tables and numbers in plain text."""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

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
