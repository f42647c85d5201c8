"""Files as they come: damaged ones as a sentence with the file and what to do, text in blocks of lines."""

from __future__ import annotations

import codecs
import csv
import gzip
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from topline.pipeline.errors import InputError, PipelineError
from topline.pipeline.readers.words import objects

#: All that parsers were seen to raise for files that are cut or have flipped bits.
PARSER_FAULTS = (
    OSError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError, SyntaxError,
    ArithmeticError, MemoryError, struct.error, zipfile.BadZipFile, zlib.error, pa.ArrowException,
    tokenize.TokenError, csv.Error,
)  # fmt: skip
# Deflate shrinks zeros so far, and nothing that is worth training on.
_MOST_EXPANSION, _ALWAYS_READ = 500, 1 << 28


@contextmanager
def reading(place: object, kind: str = "") -> Iterator[None]:
    """Turn what a parser raises for `place`, which should be a `kind`, into `InputError`; ours pass."""
    try:
        yield
    except PARSER_FAULTS as error:
        if isinstance(error, PipelineError):
            raise
        if isinstance(error, OSError) and error.errno is not None:
            raise InputError(f"{place} cannot be read: {error.strerror}") from error
        known = kind or _is_of_objects(error) or isinstance(error, UnicodeDecodeError)
        advice = "" if known else "; it is damaged: write it again"
        raise InputError(f"{place} cannot be read{kind and ' as '}{kind}: {cause(error)}{advice}") from error


def check_not_empty(path: Path) -> None:
    """Raise `InputError` for a file without a byte, such as a full disk leaves."""
    if path.is_file() and path.stat().st_size == 0:
        raise InputError(f"{path} is empty, without a byte: write it again")


def cause(error: Exception) -> str:
    """Return what a parser said on one line; of arrays of Python objects, what to do instead."""
    if _is_of_objects(error):
        return "it holds Python objects, and reading those can run code: save .astype(str), or numbers"
    if "pickled" in str(error):  # NumPy's guess about a file of another kind, whose advice is dangerous
        return "it is no file of NumPy"
    if "required filter" in str(error):
        return "it is packed by a filter that h5py lacks, such as Blosc: save it with gzip, or unpacked"
    if isinstance(error, UnicodeDecodeError):
        return "it is no UTF-8 text: save it with that encoding"
    return " ".join(str(error).split()) or type(error).__name__


def _is_of_objects(error: Exception) -> bool:
    # NumPy's words for an archive and for a map.
    return isinstance(error, ValueError) and any(
        words in str(error) for words in ("Object arrays cannot be loaded", "Python objects in dtype")
    )


def check_expansion(place: str, stored: int, unpacked: int) -> None:
    """Raise `InputError` for an array that unpacks to far more bytes than numbers are packed into."""
    if unpacked > max(_ALWAYS_READ, _MOST_EXPANSION * max(1, stored)):
        raise InputError(
            f"{place} has {stored:,} bytes and unpacks to {unpacked:,}: no features shrink so far; if it is"
            " what you mean, save it unpacked"
        )


def parquet_column(path: Path, name: str) -> NDArray[Any]:
    """Return the values of a column (n,) as Python has them, times as NumPy does."""
    column = pq.read_table(path, columns=[name], partitioning=None)[name]
    return objects(list(column.to_numpy()) if pa.types.is_temporal(column.type) else column.to_pylist())


BLOCK_LINES = 4096

Parsed = TypeVar("Parsed")


def line_blocks(path: Path, skipped: int = 0) -> Iterator[tuple[int, list[bytes]]]:
    """Return lines by the thousand, and the number of the first (from 0); `InputError` where they break."""
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

    A ValueError becomes an `InputError` that names the first wrong line, and the `form` that a line has.
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
