"""Features and labels as text, also gzipped: ARFF, the format of Weka, Mulan and MEKA, and LIBSVM's pairs.

ARFF is read here, as SciPy's reader takes no sparse rows, and liac-arff (2.5) neither escaped quotes in
names, nor ranges behind a type, nor repeated indices as the errors they are, and its time grows
exponentially with the length of a list of values that is not closed.  scikit-learn parses the pairs of
LIBSVM's lines; their labels are read here: words, several a line or none, and a line of sizes at the top are
more than it takes.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from topline.pipeline.errors import InputError
from topline.pipeline.readers.base import FeatureFile, Names, StreamedFeatures, refuse_names
from topline.pipeline.readers.files import line_blocks, parsed_blocks
from topline.pipeline.readers.words import is_number, objects

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

    With label attributes (Mulan's XML), or -C in the relation's name (MEKA), rows have label sets; else one
    attribute holds a label per row.  `InputError` for values that are no numbers, or missing (?).
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
        self.columns, self.d = self.taken, len(self.taken)
        # The label attributes, or the values of a nominal one.
        self.class_names = self._members or (self._attributes[self.label] if self.label else None) or None
        # Place of each attribute among the features, among the labels, and among the others; -1 for none.
        lists = (self.taken, self._members or [], self._others)
        known = [{name: place for place, name in enumerate(held)} for held in lists]
        self._places = np.array([[held.get(name, -1) for name in self.names] for held in known])
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

    def parsed(self) -> Iterator[csr_matrix]:
        """Return all rows, block by block."""
        return (block.X for block in self._blocks())

    def _check_attributes(self) -> str | None:
        """Refuse attributes that are not numbers; return one that is not 0 where a sparse row omits it."""
        if not self.d:
            raise InputError(f"{self.path} has no attribute that is a feature: all are labels")
        found = None
        for name, values in self._attributes.items():
            if name in self._others:
                continue
            if not all(map(is_number, values)):
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
        X = _matrix(rows, feature, values, (len(found), self.d))
        words = {name: [(self._attributes[name] or ("0",))[0]] * len(found) for name in self._others}
        for at in np.flatnonzero(other >= 0).tolist():
            words[self._others[other[at]]][rows[at]] = _unquoted(values[at].decode("utf-8", "replace"))
        if self._members is None:
            return _Block(X, [], words)
        members = _matrix(rows, member, values, (len(found), len(self._members)))
        labels, ends = [self._members[place] for place in members.indices], members.indptr.tolist()
        wrong = np.flatnonzero(members.data != 1.0)
        if len(wrong):
            raise ValueError(f"the label {labels[wrong[0]]!r} is neither 0 nor 1")
        return _Block(X, [tuple(labels[start:stop]) for start, stop in pairwise(ends)], words)

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
                f"a sparse row that leaves {unusual!r} out means {self._attributes[unusual][0]}, the first of"
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


def _matrix(
    rows: NDArray[Any], places: NDArray[Any], values: NDArray[Any], shape: tuple[int, int]
) -> csr_matrix:
    """Return the numbers of values that have a place, as CSR without zeros."""
    there = places >= 0
    if (values[there] == b"?").any():
        raise ValueError("a value is missing (?): fill it in, or leave the row out")
    try:
        found = values[there].astype(np.float64)
    except ValueError as error:
        raise ValueError(f"a value is not a number: {error}") from error
    X = csr_matrix((found, (rows[there], places[there])), shape=shape)
    X.eliminate_zeros()
    return X


MOST_COLUMNS = 2**31 - 1
_LABEL = re.compile(r"[+-]?[0-9]{1,15}(\.0*)?")
FORM = "; a line is LABEL INDEX:VALUE INDEX:VALUE ... with rising indices"


@dataclass(frozen=True, eq=False)
class _Lines:
    """Parsed lines: labels, a matrix with columns as written, and the first of the lines without labels."""

    labels: list[str]
    X: csr_matrix
    bare: int | None = None


class LibsvmFeatures(StreamedFeatures):
    """A file of LIBSVM text, read twice: once to count rows, columns and entries, once to store them.

    Columns count from 1, or from 0 if the file has a column 0.  Where a line has several labels (1,3,5) all
    lines have label sets, and one that begins with a pair has the empty one.  A first line of three numbers,
    as in the Extreme Classification Repository, says how many rows, columns and classes there are, all
    counted from 0.
    """

    first_column: int

    def __init__(self, path: Path, wanted: Names) -> None:
        super().__init__(path, wanted)
        refuse_names(path, "LIBSVM text", features_name=wanted.features, labels_name=wanted.labels)
        self._sizes = _sizes(path)
        self.class_names = list(map(str, range(self._sizes[2]))) if self._sizes else None
        self._words: list[str] = []
        low, high, entries, bare = 1, 0, 0, None
        for number, block in self._blocks():
            self._words += block.labels
            if bare is None and block.bare is not None:
                bare = number + block.bare
            entries += block.X.nnz
            if block.X.nnz:
                low, high = min(low, int(block.X.indices.min())), max(high, block.X.shape[1] - 1)
        if not self._words:
            raise InputError(f"{path} has no rows")
        self._columns = (low, high)
        if not entries:
            raise InputError(f"{path} has no index:value pair, and is no LIBSVM text; a table is called .csv")
        self._several = any("," in label for label in self._words)
        if not self._several and bare is not None:
            raise InputError(f"{path}, line {bare + 1}: it does not begin with one label{FORM}")
        self.first_column = 0 if low == 0 or self._sizes else 1
        self.n, self.d, self.nonzeros = len(self._words), max(1, high + 1 - self.first_column), entries
        if self._sizes:
            n, d, m = self._sizes
            if n != self.n or d < self.d:
                raise InputError(
                    f"{path} begins with {n} {d} {m}, but has {self.n} rows and {self.d} columns: fix its"
                    " first line or leave it out"
                )
            self.d, self._several = d, True

    def share_columns(self, other: FeatureFile) -> None:
        """Make both files count columns alike and have the same number of them."""
        if not isinstance(other, LibsvmFeatures):
            super().share_columns(other)
            return
        base = min(self.first_column, other.first_column)
        self.d = other.d = max(file.d + file.first_column - base for file in (self, other))
        self.first_column = other.first_column = base

    def as_trained(self, model: str, first: int | None, d: int) -> None:
        """Count columns from `first`, and have `d` of them."""
        if first is None:
            raise InputError(
                f"{self.path} is LIBSVM text, and {model} was trained on a file that does not number its"
                " columns: save the rows as .npz with scipy.sparse.save_npz, or as .npy"
            )
        low, high = self._columns
        if self._sizes is None and (low < first or high >= first + d):
            raise InputError(
                f"{self.path} has the columns {low} to {high}, and {model} takes {first} to"
                f" {first + d - 1}: give the features that it was trained on"
            )
        self.first_column, self.d = (0 if self._sizes else first), d

    def labels(self) -> NDArray[Any]:
        """Return the first word of each line, or a tuple of its parts where lines have several labels."""
        if not self._several:
            return np.asarray(self._words)
        return objects([tuple(filter(None, label.split(","))) for label in self._words])

    def parsed(self) -> Iterator[csr_matrix]:
        """Return all rows, block by block."""
        for _, block in self._blocks():
            X = block.X
            yield csr_matrix((X.data, X.indices - self.first_column, X.indptr), shape=(X.shape[0], self.d))

    def _blocks(self) -> Iterator[tuple[int, _Lines]]:
        return parsed_blocks(self.path, _parse, 1 if self._sizes else 0, FORM)


def _parse(lines: list[bytes]) -> _Lines:
    from sklearn.datasets import load_svmlight_file

    labels, rows, bare = list[str](), list[bytes](), None
    for place, line in enumerate(lines):
        if b"\0" in line:
            raise ValueError("this is no text")
        text = line.partition(b"#")[0]
        label, pairs = (*text.split(None, 1), b"", b"")[:2]
        if b":" in label:  # a line without labels begins with a pair
            label, pairs = b"", text
        if not label and not pairs:
            continue
        if not label and bare is None:
            bare = place
        labels.append(_checked_label(label.decode("utf-8", "replace")))
        rows.append(b"0 " + pairs.strip())
    if any(b"qid:" in row for row in rows):
        raise ValueError("it has a query id, which only rankings have")
    if not rows:
        return _Lines([], csr_matrix((0, 0)))
    with suppress(OverflowError):
        X, _ = load_svmlight_file(io.BytesIO(b"\n".join(rows)), zero_based=True)
        if X.shape[1] <= MOST_COLUMNS:
            return _Lines(labels, X, bare)
    raise ValueError(f"an index is too large: columns go up to {MOST_COLUMNS:,}")


def _checked_label(text: str) -> str:
    """Return labels as they are; ValueError for one that looks like a number and is not one."""
    for part in text.split(","):
        if part[:1] and (part[0] in "+-." or part[0].isnumeric()) and not _LABEL.fullmatch(part):
            raise ValueError(
                f"the label {part!r} is not a whole number: write digits 0 to 9, or begin with a letter"
            )
    return text


def _sizes(path: Path) -> tuple[int, int, int] | None:
    """Return rows, columns and classes, where the first line says nothing but these."""
    _, lines = next(line_blocks(path), (0, [b""]))
    words = lines[0].split()
    if len(words) != 3 or not all(word.isdigit() for word in words):
        return None
    return int(words[0]), int(words[1]), int(words[2])
