"""Features and label sets as ARFF, dense or sparse, also gzipped: the format of Weka, Mulan and MEKA.

Read here, as SciPy's reader takes no sparse rows, and liac-arff (2.5) neither escaped quotes in names, nor
ranges behind a type, nor repeated indices as the errors they are, and its time grows exponentially with the
length of a list of values that is not closed.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from topline.pipeline.errors import InputError
from topline.pipeline.readers.base import LABEL_NAMES, Names, StreamedFeatures, refuse_names
from topline.pipeline.readers.text import line_blocks, parsed_blocks
from topline.pipeline.readers.words import numbers_in

FEATURE, MEMBER, SINGLE = range(3)
NUMBERS = ("numeric", "real", "integer")

_QUOTED = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
_ATTRIBUTE = re.compile(rf"@attribute\s+({_QUOTED}|[^\s{{]+)\s*(.*)", re.IGNORECASE)
_VALUE = re.compile(rf"\s*({_QUOTED}|[^,]*?)\s*(?:,|$)")
_MEKA = re.compile(r"-C\s+(-?\d+)")


@dataclass(frozen=True)
class Attribute:
    """A column: its name, and the values of a nominal one in their order, none for numbers."""

    name: str
    values: tuple[str, ...] = ()

    @property
    def numeric(self) -> bool:
        """Whether all that it may hold are numbers."""
        return all(map(_is_number, self.values))

    @property
    def zero(self) -> str:
        """Value where a sparse row leaves it out."""
        return self.values[0] if self.values else "0"


@dataclass(frozen=True)
class ArffHeader:
    """The relation's name, the attributes, and how many lines they take, @data included."""

    relation: str
    attributes: tuple[Attribute, ...]
    lines: int

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the attributes."""
        return tuple(attribute.name for attribute in self.attributes)


class ArffFeatures(StreamedFeatures):
    """An ARFF file, read twice; features are the attributes that are not labels.

    With label attributes (Mulan's XML), or -C in the relation's name (MEKA), rows have label sets; else the
    attribute that is wanted, or one that has a usual name of labels, holds one label per row.  `InputError`
    for attributes and values that are not numbers, and for missing ones (?).
    """

    def __init__(self, path: Path, wanted: Names) -> None:
        super().__init__(path, wanted)
        refuse_names(path, "ARFF, whose attributes but labels are features", features_name=wanted.features)
        if wanted.label_attributes is not None:
            refuse_names(path, "ARFF whose labels the XML of --labels names", labels_name=wanted.labels)
        self._header = read_header(path)
        members = _set_attributes(path, self._header, wanted.label_attributes)
        single = _single_attribute(path, self._header, wanted.labels) if members is None else None
        self._members, self._single = members, single
        kinds = np.full(len(self._header.attributes), FEATURE)
        kinds[members or []] = MEMBER
        kinds[[] if single is None else [single]] = SINGLE
        self._kinds = kinds
        # Place of each attribute among the features, or among the labels.
        self._places = np.cumsum(kinds == FEATURE) - 1
        self._places[members or []] = np.arange(len(members or []))
        self.d = int(np.count_nonzero(kinds == FEATURE))
        self._never_left_out = self._check_attributes()
        self.n, self.nonzeros = 0, 0
        self._words: list[Any] = []
        for X, labels in self._blocks():
            self._words += labels
            self.n, self.nonzeros = self.n + X.shape[0], self.nonzeros + X.nnz
        if not self.n:
            raise InputError(f"{path} has no rows")

    def labels(self) -> NDArray[Any] | None:
        """Return the label of each row, or a tuple of its labels."""
        if self._members is None and self._single is None:
            return None
        if self._single is not None and self._header.attributes[self._single].numeric:
            return numbers_in(self._words)
        found = np.empty(self.n, dtype=object)
        found[:] = self._words
        return found

    def class_names(self) -> Sequence[str] | None:
        """Return the names of the label attributes, or the values of a nominal one."""
        if self._members is not None:
            return [self._header.names[place] for place in self._members]
        return None if self._single is None else self._header.attributes[self._single].values or None

    def columns(self) -> Sequence[str]:
        """Return the names of the attributes that are features."""
        return [name for name, kind in zip(self._header.names, self._kinds, strict=True) if kind == FEATURE]

    def parsed(self) -> Iterator[csr_matrix]:
        """Return all rows, block by block."""
        return (X for X, _ in self._blocks())

    def _check_attributes(self) -> Attribute | None:
        """Refuse attributes that are not numbers; return one that is not 0 where a sparse row omits it."""
        if not self.d:
            raise InputError(f"{self.path} has no attribute that is a feature: all are labels")
        found = None
        for attribute, kind in zip(self._header.attributes, self._kinds.tolist(), strict=True):
            if kind != SINGLE and not attribute.numeric:
                what = "label" if kind == MEMBER else "feature"
                values = ", ".join(attribute.values[:3])
                raise InputError(
                    f"{self.path}: the {what} {attribute.name!r} has the values {values} ..., which are not"
                    " numbers: write numbers, or name the attribute of the labels with --labels-name"
                )
            if kind != SINGLE and float(attribute.zero) != 0.0:
                found = attribute
        return found

    def _blocks(self) -> Iterator[tuple[csr_matrix, list[Any]]]:
        """Return features and labels of all rows, some thousand lines at a time."""
        return (block for _, block in parsed_blocks(self.path, self._parsed, self._header.lines))

    def _parsed(self, lines: list[bytes]) -> tuple[csr_matrix, list[Any]]:
        rows, columns, values, count = self._entries(lines)
        kinds, places = self._kinds[columns], self._places[columns]
        feature, member, single = (kinds == kind for kind in (FEATURE, MEMBER, SINGLE))
        X = csr_matrix((_numbers(values[feature]), (rows[feature], places[feature])), shape=(count, self.d))
        X.eliminate_zeros()
        if self._members is not None:
            return X, self._sets(rows[member], places[member], _numbers(values[member]), count)
        if self._single is None:
            return X, []
        labels = [self._header.attributes[self._single].zero] * count
        for row, value in zip(rows[single].tolist(), values[single].tolist(), strict=True):
            labels[row] = _unquoted(value.decode("utf-8", "replace"))
        return X, labels

    def _sets(self, rows: Any, places: Any, values: Any, count: int) -> list[tuple[str, ...]]:
        names = self.class_names() or ()
        wrong = ~np.isin(values, (0.0, 1.0))
        if wrong.any():
            raise ValueError(f"the label {names[places[np.argmax(wrong)]]!r} is neither 0 nor 1")
        found: list[list[str]] = [[] for _ in range(count)]
        for row, place in zip(rows[values == 1.0].tolist(), places[values == 1.0].tolist(), strict=True):
            found[row].append(names[place])
        return [tuple(labels) for labels in found]

    def _entries(self, lines: list[bytes]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], int]:
        """Return row, column and text of every value in some lines, and the number of rows."""
        lengths, columns, values = list[int](), list[int](), list[bytes]()
        width = len(self._kinds)
        for line in lines:
            text = line.strip()
            if not text or text.startswith(b"%"):
                continue
            if text.startswith(b"{"):
                found = self._sparse(text, width)
                columns += [column for column, _ in found]
                values += [value for _, value in found]
                lengths.append(len(found))
            else:
                words = _split(text)
                if len(words) != width:
                    raise ValueError(f"it has {len(words)} values for {width} attributes")
                columns += range(width)
                values += words
                lengths.append(width)
        rows = np.repeat(np.arange(len(lengths)), lengths)
        return rows, np.asarray(columns, dtype=np.int64), np.asarray(values, dtype=np.bytes_), len(lengths)

    def _sparse(self, text: bytes, width: int) -> list[tuple[int, bytes]]:
        """Return columns and values of {0 1.5, 7 1}; what the row leaves out must be 0."""
        unusual = self._never_left_out
        if unusual is not None:
            raise ValueError(
                f"a sparse row that leaves {unusual.name!r} out means {unusual.zero}, the first of its"
                " values: let them begin with 0"
            )
        if not text.endswith(b"}") or text.count(b"}") > 1:
            raise ValueError("a sparse row is {INDEX VALUE, INDEX VALUE, ...}, without a weight")
        found = []
        for word in _split(text[1:-1]):
            parts = word.split(None, 1)
            if len(parts) != 2 or not parts[0].isdigit() or int(parts[0]) >= width:
                shown = word.decode("utf-8", "replace")
                raise ValueError(f"{shown!r} is not INDEX VALUE with an index below {width}")
            found.append((int(parts[0]), parts[1]))
        if any(a >= b for (a, _), (b, _) in pairwise(found)):
            raise ValueError("its indices do not rise")
        return found


def read_header(path: Path) -> ArffHeader:
    """Return what precedes the data; `InputError` naming the line that cannot be read."""
    relation, attributes = "", dict[str, Attribute]()
    for first, lines in line_blocks(path):
        for number, raw in enumerate(lines, first + 1):
            line = raw.decode("utf-8", "replace").strip().removeprefix("\ufeff")
            keyword = line.split(None, 1)[0].lower() if line else ""
            if keyword == "@relation":
                relation = line[len(keyword) :].strip()
            elif keyword == "@attribute":
                attribute = _attribute(line, f"{path}, line {number}")
                if attribute.name in attributes:
                    raise InputError(f"{path} has two attributes {attribute.name!r}: rename one of them")
                attributes[attribute.name] = attribute
            elif keyword == "@data":
                return ArffHeader(relation, tuple(attributes.values()), number)
            elif line and not line.startswith("%"):
                raise InputError(f"{path}, line {number}: an ARFF file has @attribute lines before @data")
    raise InputError(f"{path} has no @data: it is not an ARFF file, or cut short")


def read_label_names(path: Path) -> list[str]:
    """Return the names of the label attributes in Mulan's XML, nested ones after those that hold them."""
    try:
        # Only entities of its own document type could make a small file large, and expat limits them.
        root = ET.parse(path).getroot()  # noqa: S314
    except (OSError, ET.ParseError) as error:
        raise InputError(f"{path} cannot be read as Mulan's XML of label names: {error}") from error
    names = [element.get("name", "") for element in root.iter() if element.tag.rpartition("}")[2] == "label"]
    if not names or not all(names) or len(set(names)) < len(names):
        raise InputError(f"{path} names a different label in each <label name=...>, and at least one")
    return names


def _set_attributes(path: Path, header: ArffHeader, wanted: Sequence[str] | None) -> list[int] | None:
    """Return places of the attributes that make label sets: the wanted ones, those of MEKA's -C, or None."""
    places = {name: place for place, name in enumerate(header.names)}
    if wanted is not None:
        missing = [name for name in wanted if name not in places]
        if missing:
            raise InputError(
                f"{path} has no attribute {missing[0]!r}, which is a label by --labels: use the XML file"
                " that belongs to it"
            )
        return [places[name] for name in wanted]
    meka = _MEKA.search(header.relation)
    if meka is None:
        return None
    count = int(meka.group(1))
    if not 0 < abs(count) < len(places):
        raise InputError(
            f"{path} has -C {count} in its relation, and {len(places)} attributes: correct the number"
        )
    return list(range(count) if count > 0 else range(len(places) + count, len(places)))


def _single_attribute(path: Path, header: ArffHeader, wanted: str | None) -> int | None:
    """Return the place of the attribute with one label per row: the wanted one, or one with a usual name."""
    if wanted is not None:
        if wanted not in header.names:
            raise InputError(f"{path} has no attribute {wanted!r}: it has {', '.join(header.names[:5])} ...")
        return header.names.index(wanted)
    return next((i for i, name in enumerate(header.names) if name.lower() in LABEL_NAMES), None)


def _attribute(line: str, place: str) -> Attribute:
    found = _ATTRIBUTE.match(line)
    name, kind = (found.group(1), found.group(2).strip()) if found else ("", "")
    if kind.startswith("{") and kind.endswith("}"):
        return Attribute(_unquoted(name), _split_values(kind[1:-1]))
    if kind and kind.split(None, 1)[0].lower() in NUMBERS:
        return Attribute(_unquoted(name))
    raise InputError(f"{place}: an attribute is numeric or {{a, b, ...}}, not {kind or line!r}")


def _split_values(text: str) -> tuple[str, ...]:
    """Return values with commas between them, some of them in quotes."""
    if not text.strip():
        return ()
    if "'" not in text and '"' not in text:
        return tuple(part.strip() for part in text.split(","))
    return tuple(_unquoted(found.group(1)) for found in _VALUE.finditer(text) if found.group(0))


def _split(text: bytes) -> list[bytes]:
    if b"'" not in text and b'"' not in text:
        return [word.strip() for word in text.split(b",")] if text.strip() else []
    return [word.encode() for word in _split_values(text.decode("utf-8", "replace"))]


def _unquoted(word: str) -> str:
    """Return a name or value without its quotes and what they escape."""
    if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", word[1:-1])
    return word


def _numbers(values: NDArray[Any]) -> NDArray[np.float64]:
    if (values == b"?").any():
        raise ValueError("a value is missing (?): fill it in, or leave the row out")
    try:
        return values.astype(np.float64)
    except ValueError as error:
        raise ValueError(f"a value is not a number: {error}") from error


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
