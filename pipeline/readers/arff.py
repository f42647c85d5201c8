"""Features and label sets as ARFF, dense or sparse, also gzipped: the format of Weka, Mulan and MEKA.

Read here, as SciPy's reader takes no sparse rows, and liac-arff (2.5) neither escaped quotes in names, nor
ranges behind a type, nor repeated indices as the errors they are, and its time grows exponentially with the
length of a list of values that is not closed.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from topline.pipeline.errors import InputError
from topline.pipeline.readers.base import Names, StreamedFeatures, refuse_names
from topline.pipeline.readers.files import line_blocks, parsed_blocks
from topline.pipeline.readers.words import objects

NUMBERS = ("numeric", "real", "integer")

_QUOTED = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
_ATTRIBUTE = re.compile(rf"@attribute\s+({_QUOTED}|[^\s{{]+)\s*(.*)", re.IGNORECASE)
_VALUE = re.compile(rf"\s*({_QUOTED}|[^,]*?)\s*(?:,|$)")
_MEKA = re.compile(r"-C\s+(-?\d+)")


@dataclass(frozen=True)
class Header:
    """The relation's name, the values of each attribute, none for numbers, and how many lines they take."""

    relation: str
    attributes: Mapping[str, tuple[str, ...]]
    lines: int


@dataclass(frozen=True, eq=False)
class _Block:
    """Features of some rows, the label set of each, and the words in columns that are no features."""

    X: csr_matrix
    sets: list[tuple[str, ...]]
    words: Mapping[str, list[str]]


class ArffFeatures(StreamedFeatures):
    """An ARFF file, read twice; features are the attributes that are not labels, splits or names of rows.

    With label attributes (Mulan's XML), or -C in the relation's name (MEKA), rows have label sets; else the
    attribute that is wanted, or one that has a usual name of labels, holds one label per row.  `InputError`
    for attributes and values that are not numbers, and for missing ones (?).
    """

    kind, has_types = "attribute", False

    def __init__(self, path: Path, wanted: Names) -> None:
        super().__init__(path, wanted)
        refuse_names(path, "ARFF, whose attributes but labels are features", features_name=wanted.features)
        if wanted.label_attributes is not None:
            refuse_names(path, "ARFF whose labels the XML of --labels names", labels_name=wanted.labels)
        self._header = read_header(path)
        self._attributes = self._header.attributes
        self.names = list(self._attributes)
        self._members = _set_attributes(path, self._header, wanted.label_attributes)
        others = self.not_features()
        self.taken = [name for name in self.names if name not in others]
        self._others = [name for name in self.names if name in others and self._members is None]
        self.d = len(self.taken)
        # Place of each attribute among the features, among the labels, and among the others.
        lists = (self.taken, self._members or [], self._others)
        self._places = np.array([[_place(name, held) for name in self.names] for held in lists])
        self._never_left_out = self._check_attributes()
        self.n, self.nonzeros = 0, 0
        self._sets: list[tuple[str, ...]] = []
        self._words: dict[str, list[str]] = {name: [] for name in self._others}
        for block in self._blocks():
            self._sets += block.sets
            for name, words in block.words.items():
                self._words[name] += words
            self.n, self.nonzeros = self.n + block.X.shape[0], self.nonzeros + block.X.nnz
        if not self.n:
            raise InputError(f"{path} has no rows")

    def column(self, name: str) -> NDArray[Any]:
        """Return the words of a column that is no feature."""
        return objects(self._words[name]) if name in self._words else super().column(name)

    def labels(self) -> NDArray[Any] | None:
        """Return the label of each row, or a tuple of its labels."""
        return super().labels() if self._members is None else objects(self._sets)

    def not_features(self) -> set[str]:
        """Return the attributes that make label sets, or else those that have a usual name of no feature."""
        return super().not_features() if self._members is None else set(self._members)

    def class_names(self) -> Sequence[str] | None:
        """Return the names of the label attributes, or the values of a nominal one."""
        return self._members or (self._values_of(self.label) if self.label else None) or None

    def columns(self) -> Sequence[str]:
        """Return the names of the attributes that are features."""
        return list(self.taken)

    def parsed(self) -> Iterator[csr_matrix]:
        """Return all rows, block by block."""
        return (block.X for block in self._blocks())

    def _values_of(self, name: str) -> tuple[str, ...]:
        return self._attributes[name]

    def _check_attributes(self) -> str | None:
        """Refuse attributes that are not numbers; return one that is not 0 where a sparse row omits it."""
        if not self.d:
            raise InputError(f"{self.path} has no attribute that is a feature: all are labels")
        found = None
        for name, values in self._attributes.items():
            if name in self._others:
                continue
            if not all(map(_is_number, values)):
                what = "label" if name in (self._members or ()) else "feature"
                raise InputError(
                    f"{self.path}: the {what} {name!r} has the values {', '.join(values[:3])} ..., which are"
                    " not numbers: write numbers, or name the attribute of the labels with --labels-name"
                )
            if values and float(values[0]) != 0.0:
                found = name
        return found

    def _blocks(self) -> Iterator[_Block]:
        """Return all rows, some thousand lines at a time."""
        return (block for _, block in parsed_blocks(self.path, self._parsed, self._header.lines))

    def _parsed(self, lines: list[bytes]) -> _Block:
        texts = (line.strip() for line in lines)
        found = [self._entries(text) for text in texts if text and not text.startswith(b"%")]
        rows = np.repeat(np.arange(len(found)), list(map(len, found)))
        columns = np.array([column for entries in found for column, _ in entries], dtype=np.int64)
        values = np.array([value for entries in found for _, value in entries], dtype=np.bytes_)
        feature, member, other = self._places[:, columns]
        is_one = feature >= 0
        entries = (_numbers(values[is_one]), (rows[is_one], feature[is_one]))
        X = csr_matrix(entries, shape=(len(found), self.d))
        X.eliminate_zeros()
        words = {name: [(self._values_of(name) or ("0",))[0]] * len(found) for name in self._others}
        for at in np.flatnonzero(other >= 0).tolist():
            words[self._others[other[at]]][rows[at]] = _unquoted(values[at].decode("utf-8", "replace"))
        there = member >= 0
        return _Block(X, self._label_sets(rows[there], member[there], values[there], len(found)), words)

    def _label_sets(self, rows: Any, places: Any, words: Any, count: int) -> list[tuple[str, ...]]:
        """Return the labels of each row, an attribute of 0 and 1 each."""
        names, values = self._members, _numbers(words)
        if names is None:
            return []
        wrong = ~np.isin(values, (0.0, 1.0))
        if wrong.any():
            raise ValueError(f"the label {names[places[np.argmax(wrong)]]!r} is neither 0 nor 1")
        found: list[list[str]] = [[] for _ in range(count)]
        for row, place in zip(rows[values == 1.0].tolist(), places[values == 1.0].tolist(), strict=True):
            found[row].append(names[place])
        return [tuple(labels) for labels in found]

    def _entries(self, text: bytes) -> list[tuple[int, bytes]]:
        """Return columns and values of 1.5,0,7 or {0 1.5, 2 7}; what a row leaves out must be 0."""
        width = len(self.names)
        if not text.startswith(b"{"):
            words = _split(text)
            if len(words) != width:
                raise ValueError(f"it has {len(words)} values for {width} attributes")
            return list(enumerate(words))
        unusual = self._never_left_out
        if unusual is not None:
            raise ValueError(
                f"a sparse row that leaves {unusual!r} out means {self._values_of(unusual)[0]}, the first of"
                " its values: let them begin with 0"
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


def read_header(path: Path) -> Header:
    """Return what precedes the data; `InputError` naming the line that cannot be read."""
    relation, attributes = "", dict[str, tuple[str, ...]]()
    for first, lines in line_blocks(path):
        for number, raw in enumerate(lines, first + 1):
            line = raw.decode("utf-8", "replace").strip().removeprefix("\ufeff")
            keyword = line.split(None, 1)[0].lower() if line else ""
            if keyword == "@relation":
                relation = line[len(keyword) :].strip()
            elif keyword == "@attribute":
                name, values = _attribute(line, f"{path}, line {number}")
                if name in attributes:
                    raise InputError(f"{path} has two attributes {name!r}: rename one of them")
                attributes[name] = values
            elif keyword == "@data":
                return Header(relation, attributes, number)
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


def _set_attributes(path: Path, header: Header, wanted: Sequence[str] | None) -> list[str] | None:
    """Return the attributes that make label sets: the wanted ones, those of MEKA's -C, or None."""
    names = list(header.attributes)
    if wanted is not None:
        missing = [name for name in wanted if name not in header.attributes]
        if missing:
            raise InputError(
                f"{path} has no attribute {missing[0]!r}, which is a label by --labels: use the XML file"
                " that belongs to it"
            )
        return list(wanted)
    meka = _MEKA.search(header.relation)
    if meka is None:
        return None
    count = int(meka.group(1))
    if not 0 < abs(count) < len(names):
        raise InputError(
            f"{path} has -C {count} in its relation, and {len(names)} attributes: correct the number"
        )
    return names[:count] if count > 0 else names[count:]


def _place(name: str, names: Sequence[str]) -> int:
    return names.index(name) if name in names else -1


def _attribute(line: str, place: str) -> tuple[str, tuple[str, ...]]:
    found = _ATTRIBUTE.match(line)
    name, kind = (found.group(1), found.group(2).strip()) if found else ("", "")
    if kind.startswith("{") and kind.endswith("}"):
        return _unquoted(name), _split_values(kind[1:-1])
    if kind and kind.split(None, 1)[0].lower() in NUMBERS:
        return _unquoted(name), ()
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
