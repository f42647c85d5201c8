"""Tables and numbers in plain text."""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topline.pipeline.evaluation import Metric


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
    """Lay out rows under their heads, columns as wide as their widest entry.

    Columns named in `spare` are left out, one after the other, until the table is as wide as a usual window.
    """
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


def following(*commands: Sequence[str], hint: str = "") -> list[str]:
    """Return the lines of what comes next, quoted for a shell, with `hint` behind them.

    A word in capitals, such as FOLDER, stands for one of the reader's.
    """
    heads = ["  next:", *[" " * 7] * (len(commands) - 1)]
    behind = f"   {hint}" if hint else ""
    return ["", *(f"{head} {shlex.join(words)}{behind}" for head, words in zip(heads, commands, strict=True))]


def metrics_line(measured: Iterable[tuple[Metric, float]]) -> str:
    """Return metrics in one line."""
    return "   ".join(f"{metric.column} {metric.text(value)}" for metric, value in measured)


def metrics_lines(measured: Iterable[tuple[Metric, float]]) -> list[str]:
    """Return metrics in as many lines as a window of 80 columns wants, none of them cut."""
    lines: list[str] = []
    for one in measured:
        said = metrics_line([one])
        if lines and len(lines[-1]) + len(said) + 3 <= WINDOW - 2:
            lines[-1] += f"   {said}"
        else:
            lines.append(f"  {said}")
    return lines


def without_class_means(measured: Iterable[tuple[Metric, float]]) -> list[tuple[Metric, float]]:
    """Return metrics without the means over classes that have no place where there is room for few."""
    return [
        (metric, value)
        for metric, value in measured
        if metric.headline or getattr(metric, "class_weights", None) is None
    ]


def counted(counts: Mapping[str, int]) -> str:
    """Numbers with what they count, those of nothing left out."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "none"
