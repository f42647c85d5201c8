"""Features in text files with a line a row: read in blocks of lines, from front to back, also gzipped."""

from __future__ import annotations

import codecs
import gzip
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, TypeVar, cast

from topline.pipeline.errors import InputError

BLOCK_LINES = 4096

Parsed = TypeVar("Parsed")


def line_blocks(path: Path, skipped: int = 0) -> Iterator[tuple[int, list[bytes]]]:
    """Return lines of a file, a few thousand at a time, with the number of the first (from 0), some left out.

    `InputError` for a file that cannot be read, saying after which line.
    """
    number = 0
    try:
        with opened(path) as file:
            number += len(list(islice(file, skipped)))
            while lines := list(islice(file, BLOCK_LINES)):
                if number == 0:
                    # Windows' mark of UTF-8, which would be a part of the first word.
                    lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
                yield number, lines
                number += len(lines)
    except (OSError, EOFError) as error:
        raise InputError(f"{path} cannot be read after line {number}: {error}") from error


def parsed_blocks(
    path: Path, parse: Callable[[list[bytes]], Parsed], skipped: int = 0, form: str = ""
) -> Iterator[tuple[int, Parsed]]:
    """Return what `parse` makes of each block of lines, with the number of its first line (from 0).

    Where `parse` raises a ValueError, lines are parsed again one by one: `InputError` names the first wrong
    one, and adds the `form` that a line has.
    """
    for number, lines in line_blocks(path, skipped):
        try:
            yield number, parse(lines)
        except ValueError:
            for place, line in enumerate(lines):
                try:
                    parse([line])
                except ValueError as error:
                    raise InputError(f"{path}, line {number + place + 1}: {error}{form}") from error
            raise


def is_packed(path: Path) -> bool:
    """Return whether a file is gzipped, by its name."""
    return path.suffix.lower() == ".gz"


def opened(path: Path) -> IO[bytes]:
    """Return the bytes of a text file, unpacked."""
    return cast("IO[bytes]", gzip.GzipFile(path)) if is_packed(path) else path.open("rb")
