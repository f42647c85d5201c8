"""Labels as words: the one rule of which numbers are classes, in tables of images and of features."""

from __future__ import annotations

import datetime as dt
import math
import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.errors import InputError
from topline.storage.schema import SPLITS

#: Rows that a message lists before it only counts.
NAMED_ROWS = 3
#: What to do about labels that are fractions.
NO_FRACTIONS = (
    "number classes from 0, or save their names as text, labels.astype(str), in .npy or Parquet; amounts are"
    " no classes"
)
#: Words for splits.
SPLIT_NAMES = {name: name for name in ("train", "val", "test", "calibration")}
SPLIT_NAMES |= {"training": "train", "valid": "val", "validation": "val", "testing": "test"}
_TRUTHS = {"true": "True", "false": "False"}
_TIMES = (np.datetime64, np.timedelta64, dt.date, dt.time, dt.timedelta)
#: Words that stand for no label in a column of numbers; in one of words they are names like any other.
_MISSING = frozenset({"nan", "none", "null"})
_WHOLE = re.compile(r"\+?(-?\d+)(?:\.0*)?")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_ONE_VALUE = (str, bytes, bool, int, float, Decimal, np.generic, type(None))


def word(value: object) -> str | None:
    """Return a label as text, None where it is missing: 3.0 and +3 are 3; 007 stays a name."""
    text = text_of(value)
    whole = None if text is None else _WHOLE.fullmatch(text)
    return whole.group(1) if whole else text


def label_words(
    found: Sequence[object] | NDArray[Any],
    place: str,
    names: Sequence[str] | None,
    rows: Sequence[int] | None = None,
) -> list[str]:
    """Return labels as class names, numbers as places in `names`; `InputError` names missing ones."""
    values = plain(found)
    words = class_words(values, place, rows) if names is None else list(map(word, values))
    refuse_rows(place, "no label", [text is None for text in words], "give each row one", rows=rows)
    known = [str(text) for text in words]
    if names is not None:
        code = {str(i): name for i, name in enumerate(names)} | {name: name for name in names}
        fix = f"give 0..{len(names) - 1} or names"
        refuse_rows(place, "a label out of range", [text not in code for text in known], fix, known, rows)
        known = [code[text] for text in known]
    return known


def class_words(values: Sequence[object], place: str, rows: Sequence[Any] | None = None) -> list[str | None]:
    """Return labels as class names, None for those that are missing: the rule of every table and shard.

    Where all are numbers, 1.0 is 1, and nan, none and null are missing; beside words, which may be versions,
    every text is a name as it stands; truth values are True and False.  `InputError` for what is no class: a
    fraction, a date, a list, a truth value beside numbers, a negative number unless the classes are -1 and 1.
    """
    if any(isinstance(value, _TIMES) for value in values):
        raise InputError(f"{place} has dates or times for labels: save the classes that they mean as text")
    words = words_of(values)
    truths = [isinstance(value, (bool, np.bool_)) for value in values]
    mixed = any(truths) and len(words) - words.count(None) > sum(truths)
    # -1 and 1 are two classes; among others -1 means that there is no label.
    signs = set(words) - {None} == {"-1", "1"}
    wrong = {
        ("what is no label", "give a word or a whole number a row"): [
            not isinstance(value, _ONE_VALUE) for value in values
        ],
        ("a truth value beside other labels", "write every label alike"): [mixed and one for one in truths],
        ("a fraction for a label", NO_FRACTIONS): list(map(_is_fraction, values)),
        ("a negative label", "number classes from 0, and leave unlabelled rows out"): [
            not signs and re.fullmatch(r"-\d+", text or "") is not None for text in words
        ],
    }
    for (what, fix), found in wrong.items():
        refuse_rows(place, what, found, fix, values, rows)
    return words


def _is_fraction(value: object) -> bool:
    return isinstance(value, (float, Decimal)) and math.isfinite(value) and value != int(value)


def words_of(values: Sequence[object]) -> list[str | None]:
    """Return labels as `class_words` does, whatever they are."""
    texts = [text_of(value) for value in values]
    if all(text is None or text.lower() in _TRUTHS for text in texts):
        return [None if text is None else _TRUTHS[text.lower()] for text in texts]
    if not _are_numbers(texts):
        return texts
    return [None if text is None or text.lower() in _MISSING else word(text) for text in texts]


def refuse_rows(
    place: str,
    what: str,
    wrong: Sequence[bool],
    fix: str,
    values: Sequence[object] | None = None,
    rows: Sequence[Any] | None = None,
) -> None:
    """Raise `InputError` naming the first rows for which `wrong` is true, and how many more there are."""
    found = [one for one, is_wrong in enumerate(wrong) if is_wrong]
    if found:
        names = [
            f"{one if rows is None else rows[one]}{f' ({values[one]})' if values else ''}" for one in found
        ]
        raise InputError(f"{place} has {what} in {first_rows(names)}: {fix}")


def plain(values: Sequence[object] | NDArray[Any]) -> list[object]:
    """Return values as Python has them, times as NumPy does."""
    if isinstance(values, np.ndarray) and values.dtype.kind not in "mM":
        return list(values.tolist())
    return list(values)


def objects(values: Sequence[Any]) -> NDArray[Any]:
    """Return values (n,) of any type, lists among them as they are."""
    return np.fromiter(values, dtype=object, count=len(values))


def numbers_in(words: Sequence[str | None]) -> NDArray[Any]:
    """Return the words of a text, which has no types, or where all are numbers its fractions as floats."""

    def number(text: str | None) -> object:
        return float(text) if text and is_number(text) and not _WHOLE.fullmatch(text) else text

    return objects(list(map(number, words)) if _are_numbers(words) else words)


def is_number(text: str) -> bool:
    """Whether a text is a number."""
    return _NUMBER.fullmatch(text) is not None


def _are_numbers(texts: Sequence[str | None]) -> bool:
    found = {is_number(text) for text in texts if text and text.lower() not in _MISSING}
    return found == {True}


def first_rows(rows: Sequence[object]) -> str:
    """Return the first of some rows for a message: "row 4", "rows 4, 9, 30 and 2 more"."""
    more = f" and {len(rows) - NAMED_ROWS} more" if len(rows) > NAMED_ROWS else ""
    return f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows[:NAMED_ROWS]))}{more}"


def split_name(word: str, place: str) -> str:
    """Return the split that a word of a table means; `InputError` naming `place` if there is none."""
    found = SPLIT_NAMES.get(word.strip().lower())
    if found is None:
        raise InputError(f"{place} has the split {word!r}: write train, val, test or calibration")
    return found


def split_words(values: Sequence[object] | NDArray[Any], place: str) -> list[str]:
    """Return splits as "train", "val", "test" or "calibration"; codes 0, 1, 2, 4 are read as well."""
    codes = {str(code): name for name, code in SPLITS.items() if name != "rejected"}
    words = list(map(word, plain(values)))
    refuse_rows(place, "no split", [text is None for text in words], "write train, val, test or calibration")
    named = enumerate(map(str, words))
    return [codes.get(text) or split_name(text, f"{place}, row {row},") for row, text in named]


def row_weights(values: Sequence[object], place: str) -> NDArray[np.float64]:
    """Return how often each row counts in training, (n,); `InputError` naming rows without such a number."""
    texts = [text_of(value) or "" for value in values]
    found = np.array([float(text) if is_number(text) else np.nan for text in texts])
    wrong = (~(found >= 0)).tolist()
    refuse_rows(place, "no weight, a number from 0 on,", wrong, "give each row one", values)
    return found


def text_of(value: object) -> str | None:
    """Return a label as text without blanks around it, accents in one form; None for None, NaN and blanks."""
    if value is None or value != value or (isinstance(value, (float, Decimal)) and math.isinf(value)):
        return None
    if isinstance(value, (float, Decimal)):
        return str(int(value)) if value == int(value) else str(value)
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    if not text.isascii():  # a half of a pair of surrogates is in no text that can be stored
        text = unicodedata.normalize("NFC", text.encode("utf-8", "backslashreplace").decode())
    return text.strip() or None


# What spreadsheets take for the beginning of a formula, or drop before they look for one.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
# What a terminal obeys, and a text that looks like what is written in its place; tabs and ends of lines stay.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_WRITTEN = re.compile(r"\\(u00[0-9a-f]{2})")


def harmless(text: str) -> str:
    r"""Return the text of a cell so that nobody runs it.

    A formula that is no plain number gets an apostrophe before it; a control character such as ESC is
    written as \u001b.
    """
    text = without_controls(_WRITTEN.sub(r"\\u005c\1", text))
    if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text):
        return f"'{text}"
    return text


def as_given(text: str) -> str:
    """Return the text that `harmless` was given for a cell."""
    if text[:1] == "'" and text[1:].startswith(_FORMULA):
        text = text[1:]
    return _WRITTEN.sub(lambda found: chr(int(found[1][1:], 16)), text)


def without_controls(text: str) -> str:
    """Return a text, or a line of JSON, with control characters as JSON writes them."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
