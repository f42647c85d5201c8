"""Values as text: numbers, times and options as pages show them, and CSV that no spreadsheet runs."""

from __future__ import annotations

import csv
import datetime as dt
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from topline.pipeline.readers import harmless

DASH = "\u2013"
# A vocabulary is tens of thousands of characters; of a longer value only its beginning is shown.
LONGEST_VALUE = 500


def _or_dash(form: str) -> Callable[[float | None], str]:
    return lambda value: DASH if value is None else form.format(value)


#: Six significant digits, a share with one decimal, a count with separated thousands, a gap to three digits.
number = _or_dash("{:.6g}")
percent = _or_dash("{:.1%}")
count = _or_dash("{:,}")
gap = _or_dash("{:.2e}")


def duration(value: float | None) -> str:
    """Return seconds, or minutes and hours where there are many."""
    if value is None:
        return DASH
    if value < 120:
        return f"{value:.1f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def amount(size: float | None) -> str:
    """Return bytes in the unit that leaves one to three digits before the point."""
    if size is None:
        return DASH
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.3g} GB" if size < 1000 else f"{size / 1000:,.3g} TB"


def px(value: float) -> str:
    """Return a length in pixels to one decimal."""
    return f"{value:.1f}"


def tick(value: float) -> str:
    """Return the value of a tick of an axis, briefly."""
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    return f"{value:.6g}"


def clock(at: float | None) -> str:
    """Return a time in seconds since 1970 as a date and time in UTC, to the second; "" where unknown."""
    if at is None or math.isnan(at):
        return ""
    return dt.datetime.fromtimestamp(at, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")


def when(text: str) -> str:
    """Return a recorded time, which is ISO 8601 in UTC, as a person reads it."""
    return text.replace("T", " ").removesuffix("+00:00")


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return nested options as (dotted name, value) pairs, leaving out those without a value."""
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        if name == "chosen":
            # What a search compared has a table of its own.
            continue
        if isinstance(value, Mapping):
            pairs += flat(value, f"{prefix}{name}.")
        elif value is not None:
            shown = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            if len(shown) > LONGEST_VALUE:
                shown = f"{shown[:20]}\u2026 ({len(shown):,} characters)"
            pairs.append((f"{prefix}{name}", shown))
    return pairs


def csv_url(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as CSV in a data URL, which a page offers without a server; None is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    for row in (heads, *rows):
        writer.writerow(["" if value is None else harmless(str(value)) for value in row])
    return f"data:text/csv;charset=utf-8,{quote(text.getvalue())}"
