"""Text that a spreadsheet may open without running any of it, and tables as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

# What spreadsheets take for the beginning of a formula, or drop before they look for one.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")


def harmless(text: str) -> str:
    """Return the text of a cell so that no spreadsheet runs it: a formula gets an apostrophe before it.

    Plain numbers, which begin with a sign too, stay as they are.
    """
    if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text):
        return f"'{text}"
    return text


def csv_url(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as CSV in a data URL, which a page offers without a server; None is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    for row in (heads, *rows):
        writer.writerow(["" if value is None else harmless(str(value)) for value in row])
    return f"data:text/csv;charset=utf-8,{quote(text.getvalue())}"
