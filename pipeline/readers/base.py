"""What every file of features offers, and how what is inside one is found, named and checked."""

from __future__ import annotations

import difflib
import glob
import logging
import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, vstack

from topline.pipeline.errors import InputError
from topline.pipeline.readers.files import parquet_column
from topline.pipeline.readers.words import first_rows, is_number, numbers_in, refuse_rows, text_of

FEATURE_NAMES = ("features", "X", "x", "embeddings", "embedding", "data", "arr_0")
ID_NAMES = ("sample_id", "image_path", "key")
LABEL_NAMES = ("labels", "label", "y", "Y", "targets", "target", "class")

Rows = NDArray[Any] | csr_matrix
#: Names that a message lists at most.
NAMED_COLUMNS = 8
#: Names of parts that say how many there are: train-00000-of-00003.parquet.
_PART = re.compile(r"(.*?)(\d+)(-of-0*(\d+))")


@dataclass(frozen=True)
class Names:
    """Names of what to read inside a file; `beside` are columns that are no features, but are read too."""

    features: str | None = None
    labels: str | None = None
    label_attributes: Sequence[str] | None = None
    beside: tuple[str, ...] = ()


class FeatureFile(ABC):
    """Features (n, d) in a file that is read piece by piece, never as a whole; `close` ends it.

    `nonzeros` is None for dense ones.  `rows` is asked for in increasing order, and may be slow otherwise.
    Beside them are values by `names`: among these are labels, splits and names of rows, by what they are
    called.  Labels are as the file has them: one value a row, or several as an indicator (n, m) of 0 and 1 or
    as tuples in an array of objects.
    """

    n: int
    d: int
    nonzeros: int | None = None
    #: Columns or arrays in the file, and those of them that are features.
    names: Sequence[str] = ()
    taken: Sequence[str] = ()
    #: Columns of a DataFrame's index, which may name rows.
    index: Sequence[str] = ()
    #: The names of the features in their order, None where one array has all, or the file names none.
    columns: Sequence[str] | None = None
    #: The names of all classes in their order, where the file has them.
    class_names: Sequence[str] | None = None
    #: The number of the first column where a text numbers them.
    first_column: int | None = None
    #: What a name names.
    kind = "column"
    has_types = True  # a text has none, and its labels are numbers where all of them are
    #: A file in Parquet that has what `names` are beside the features, row by row.
    table: Path | None = None

    def __init__(self, path: Path, wanted: Names | None = None) -> None:
        self.path = path
        self.wanted = wanted or Names()

    @property
    def place(self) -> str:
        """Where the features are, for messages."""
        return str(self.path)

    @abstractmethod
    def rows(self, start: int, stop: int) -> Rows:
        """Return rows start..stop-1, shape (stop - start, d)."""

    def column(self, name: str) -> NDArray[Any]:
        """Return the value of each row by one of `names`."""
        if self.table is not None and name in self.names:
            return parquet_column(self.table, name)
        raise InputError(f"{self.place} has no {self.kind} {name!r}: {_choice(name, self.names)}")

    @cached_property
    def label(self) -> str | None:
        """The name of the labels: the wanted one, or a usual one; None where the file has none."""
        return pick_label(self.place, self.kind, self.wanted.labels, self.names)

    def labels(self) -> NDArray[Any] | None:
        """Return the label of each row, None where the file has none."""
        found = None if self.label is None else one_column(self.column(self.label))
        return found if found is None or self.has_types else numbers_in(found.tolist())

    def splits(self) -> NDArray[Any] | None:
        """Return the split of each row, None where the file has none."""
        return self.column("split") if "split" in self.names else None

    def ids(self) -> Sequence[str] | None:
        """Return the name of each row, None where the file has none."""
        name = next((name for name in ID_NAMES if name in self.names), None)
        if name is None:
            texts = self.column(self.index[0]).tolist() if len(self.index) == 1 else []
            # An index may repeat itself or be of numbers, which name no row.
            words = all(isinstance(text, str) and text for text in texts)
            numbers = not self.has_types and any(map(is_number, texts))
            return texts if words and not numbers and len(set(texts)) == len(texts) > 0 else None
        ids = list(map(text_of, self.column(name).tolist()))
        fix = f"name every row, or leave the {self.kind} {name} out"
        refuse_rows(self.place, f"no {name}", [text is None for text in ids], fix)
        return list(map(str, ids))

    def not_features(self) -> set[str]:
        """Return the names that are something else than features."""
        label = [self.label] if self.label else []
        return {"split", "", *ID_NAMES, *self.index, *self.wanted.beside, *label}

    def left_out(self) -> Sequence[str]:
        """Return the names that are taken for nothing."""
        taken = self.not_features().union(self.taken) if self.names else ()
        return [name for name in self.names if name not in taken]

    def files(self) -> Sequence[Path]:
        """Return the files that all this comes from."""
        return (self.path,) if self.table is None else (self.path, self.table)

    def share_columns(self, other: FeatureFile) -> None:
        """Make both files have the same columns; `InputError` where they differ."""
        if self.d != other.d:
            raise InputError(
                f"{self.place} has {self.d:,} features per row and {other.place} {other.d:,}: give files of"
                " the same features"
            )
        if self.columns is not None and other.columns is not None:
            check_columns(self.place, self.columns, other.place, other.columns)

    def as_trained(self, model: str, first: int | None, d: int) -> None:  # noqa: B027 - most number nothing
        """Have `d` columns, counted from `first` as training did; `InputError` where the file has others."""

    def close(self) -> None:  # noqa: B027 - most files are open only while they are read
        """Close what is open."""


class StreamedFeatures(FeatureFile):
    """Rows that are parsed from the start, in runs of any length."""

    def __init__(self, path: Path, wanted: Names | None = None) -> None:
        super().__init__(path, wanted)
        self._runs: Iterator[Rows] | None = None
        self._kept: list[tuple[int, Rows]] = []
        self._next = 0

    @abstractmethod
    def parsed(self) -> Iterator[Rows]:
        """Return all rows from the first on, some at a time."""

    def rows(self, start: int, stop: int) -> Rows:
        """Return rows start..stop-1, shape (stop - start, d); going back begins again."""
        if self._runs is None or start < (self._kept[0][0] if self._kept else self._next):
            self._runs, self._kept, self._next = self.parsed(), [], 0
        while self._next < stop:
            run = next(self._runs)
            self._kept.append((self._next, run))
            self._next += run.shape[0]
        self._kept = [(first, run) for first, run in self._kept if first + run.shape[0] > start]
        parts = [run[max(0, start - first) : max(0, stop - first)] for first, run in self._kept]
        if parts:
            return stacked(parts)
        return np.zeros((0, self.d)) if self.nonzeros is None else csr_matrix((0, self.d))


def stacked(parts: Sequence[Rows]) -> Rows:
    """Return rows one below the other: CSR where a part is."""
    if len(parts) == 1:
        return parts[0]
    if any(isinstance(part, csr_matrix) for part in parts):
        return csr_matrix(vstack(list(map(csr_matrix, parts)), format="csr"))
    return np.concatenate([np.asarray(part) for part in parts])


def local_path(text: str) -> Path:
    """Return the place that a text names, also as file://, accents in any form; `InputError` for URLs."""
    if text.startswith("file://"):
        text = unquote(text.removeprefix("file://").removeprefix("localhost"))
    if "://" in text:
        raise InputError(f"{text}: data are read from this machine's disks: copy or mount them first")
    try:
        path = Path(text).expanduser().absolute()
    except RuntimeError:  # ~name of nobody
        path = Path(text).absolute()
    forms = (Path(unicodedata.normalize(form, str(path))) for form in ("NFC", "NFD"))
    found = path if path.exists() else next((form for form in forms if form.exists()), path)
    if "\\" in text and not found.exists() and Path(text.replace("\\", "/")).exists():
        raise InputError(f"{text}: folders are parted by / here: write {text.replace(chr(92), '/')}")
    return found


def parts_of(path: Path, readable: Sequence[str], *, only: bool = False) -> list[Path]:
    """Return the files that a folder or a pattern (data/*.npy) names, by the numbers in their names.

    A file is its only part.  Of a folder it is all files with one of the suffixes `readable`, of one kind; of
    a pattern all that match, or with `only` those with a suffix.  `InputError` where a folder has none, or
    where one of as many as their names count is missing, unless a pattern leaves it out by [brackets].
    """
    if path.is_file():
        return [path]
    pattern = not path.exists()
    found = [Path(name) for name in glob.glob(str(path), recursive=True)] if pattern else path.rglob("*")  # noqa: PTH207
    hidden = [] if pattern else path.parts
    files = [
        file
        for file in found
        if file.is_file() and not any(part[:1] in "._" for part in file.parts[len(hidden) :] if hidden)
    ]
    every = pattern and not only
    kept = files if every else [file for file in files if file.name.lower().endswith(tuple(readable))]
    kinds = Counter(file.suffix.lower() for file in kept)
    if len(kinds) > 1:
        told = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
        raise InputError(f"{path} has files of several kinds ({told}): name those of one with a pattern")
    if not kept and not pattern:
        raise InputError(
            f"{path} has no file of features ({', '.join(readable)}), and no img_emb/*.npy of clip-retrieval;"
            " images become features by topline extract --images"
        )
    ordered = sorted(
        kept,
        key=lambda file: [
            (int(word), "") if word.isdigit() else (-1, word) for word in re.split(r"(\d+)", str(file))
        ],
    )
    return ordered if pattern and "[" in path.name else all_parts(path, ordered)


def all_parts(path: Path, files: list[Path]) -> list[Path]:
    """Return the files of `path`; `InputError` where some of as many as their names count are missing."""
    sets = defaultdict[tuple[Path, str, int], dict[int, re.Match[str]]](dict)
    for file in files:
        if part := _PART.match(file.name):
            sets[file.parent, part[1], int(part[4])][int(part[2])] = part
    for (_, head, total), there in sets.items():
        part, first = next(iter(there.values())), int(total in there)
        gone = next((number for number in range(first, first + total) if number not in there), None)
        if gone is not None:
            others = f" and {total - len(there) - 1} more" * (len(there) < total - 1)
            raise InputError(
                f"{path}: part {gone} of {total} is missing, {head}{gone:0{len(part[2])}}{part[3]}{others}:"
                " bring back what is missing, or name the parts that are meant in brackets: train-0000[02]*"
            )
    return files


def pick(place: str, what: str, wanted: str | None, usual: Sequence[str], there: Sequence[str]) -> str | None:
    """Return `wanted` (else `InputError`), a usual name, also in capitals, the only one `there`, or None."""
    if wanted is not None:
        if wanted not in there:
            raise InputError(f"{place} has no {what} {wanted!r}: {_choice(wanted, there)}")
        return wanted
    found = [name for name in usual if name in there]
    found += [name for name in there if name.strip().lower() in usual]
    if found:
        return found[0]
    return there[0] if len(there) == 1 else None


def pick_label(place: str, what: str, wanted: str | None, there: Sequence[str]) -> str | None:
    """Return the wanted or usual name of the labels among `there`, None where there is none."""
    found = pick(place, what, wanted, LABEL_NAMES, there)
    usual = found is not None and (found in LABEL_NAMES or found.strip().lower() in LABEL_NAMES)
    return found if wanted or usual else None


def _choice(wanted: str, there: Sequence[str]) -> str:
    """Return what there is in the place of a name that is not there, a similar one before others."""
    close = difflib.get_close_matches(wanted, there, n=1)
    found = f"it has {named(there)}" if there else "it has none"
    return f"did you mean {close[0]!r}? {found}" if close else found


def named(names: Sequence[str]) -> str:
    """Return names with commas between them, of many the first and the last ones."""
    if len(names) <= NAMED_COLUMNS:
        return ", ".join(names)
    first, last = names[: NAMED_COLUMNS - 2], names[-2:]
    return f"{', '.join(first)} ... {', '.join(last)} ({len(names):,} in all)"


def one_column(labels: NDArray[Any]) -> NDArray[Any]:
    """Return labels (n, 1) or (1, n) as (n,): one label a row, and no indicator of a single class."""
    return labels.ravel() if labels.ndim == 2 and 1 in labels.shape else labels


def check_matrix(place: str, shape: Sequence[int], dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return rows and columns of an array of features; `InputError` where it is not a matrix of numbers."""
    if dtype.hasobject:
        raise InputError(f"{place} holds Python objects, which are never loaded: save numbers")
    if dtype.kind not in "fiub" and dtype.name != "bfloat16":
        untyped = " (as NumPy writes bfloat16): save .astype(np.float32)" if dtype.kind == "V" else ""
        raise InputError(f"{place} holds {dtype}, and features are real numbers{untyped}")
    if len(shape) == 2 and min(shape) < 1:
        what = "rows" if shape[0] < 1 else "columns"
        raise InputError(f"{place} has no {what}: its shape is {tuple(shape)}; write the features again")
    if len(shape) != 2:
        raise InputError(f"{place} has shape {tuple(shape)}, and features are (rows, columns)")
    return int(shape[0]), int(shape[1])


def check_columns(place: str, columns: Sequence[str], other: str, others: Sequence[str]) -> None:
    """Raise `InputError` where the features of two files, or of a model and a file, are not the same."""
    if list(columns) == list(others):
        return
    missing = [name for name in columns if name not in set(others)]
    foreign = [name for name in others if name not in set(columns)]
    said = f"{place} and {other} have the same features in different orders: write the columns in one order"
    if missing or foreign:
        more, less = (place, other) if missing else (other, place)
        said = f"{more} has the features {named(missing or foreign)}, which {less} does not have"
        if missing and foreign:
            said = f"{place} has the features {named(missing)}, and {other} {named(foreign)} in their place"
        said += ": give files of the same features"
    raise InputError(said)


def refuse_names(place: object, what: str, **given: str | None) -> None:
    """Raise `InputError` where an option names something in a file of a kind, `what`, that has no names."""
    for option, name in given.items():
        if name is not None:
            flag = "--" + option.replace("_", "-")
            raise InputError(f"{flag} {name} names nothing in {place}, which is {what}: leave {flag} out")


logger = logging.getLogger(__name__)

#: A column keeps so many steps within its spread, or a warning names it.
_STEPS = 512


def names_of_rows(source: FeatureFile) -> Sequence[str]:
    """Return a name for each row; `InputError` where two rows have the same, by which edits find them."""
    ids = source.ids()
    if ids is None:
        return [row_name(row) for row in range(source.n)]
    if len(set(ids)) < len(ids):
        twice = next(name for name, count in Counter(ids).items() if count > 1)
        rows = [row for row, name in enumerate(ids) if name == twice]
        raise InputError(
            f"{source.place} names {first_rows(rows)} alike, {twice!r}: give each row a name of its own,"
            " or leave the column of names out"
        )
    return ids


def row_name(row: int) -> str:
    """Return the name of a row that the file gives none."""
    return f"row{row:09d}"


def checked_rows(source: FeatureFile, X: Rows, start: int, dtype: str) -> Rows:
    """Return rows in the stored type (CSR: float32); `InputError` naming those that are not finite."""
    kind = np.dtype(dtype)
    values = X.data if isinstance(X, csr_matrix) else X
    with np.errstate(over="ignore"):
        stored = np.asarray(values).astype(kind)
    bad = ~np.isfinite(stored)
    if bad.any():
        _refuse(source, X, np.asarray(values), bad, start, dtype)
    if isinstance(X, csr_matrix):
        return csr_matrix((stored.astype(np.float32), X.indices, X.indptr), shape=X.shape)
    return stored


def tell_coarse(source: FeatureFile, X: Rows, stored: Rows) -> bool:
    """Warn of columns whose values X differ by less than their type as `stored` can tell; return whether."""
    if isinstance(X, csr_matrix) or isinstance(stored, csr_matrix) or len(X) < 2:
        return False
    if X.dtype == stored.dtype or X.dtype.kind == "b":
        return False
    values = X.astype(np.float64)
    spread = values.max(axis=0) - values.min(axis=0)
    lost = np.abs(values - stored).max(axis=0) * _STEPS > spread
    columns = np.flatnonzero(lost & (spread > 0)).tolist()
    if columns:
        names = source.columns or [f"column {column}" for column in range(X.shape[1])]
        logger.warning(
            "%s: %s has values so close beside their size that %s takes many for equal, such as times in"
            " seconds: subtract their mean, and import again",
            source.place,
            named([names[column] for column in columns]),
            stored.dtype,
        )
    return bool(columns)


def _refuse(source: FeatureFile, X: Rows, values: Any, bad: Any, start: int, dtype: str) -> None:
    if isinstance(X, csr_matrix):
        local = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))[bad]
    else:
        local = np.flatnonzero(bad.any(axis=1))
    rows = (np.unique(local) + start).tolist()
    names = None if isinstance(X, csr_matrix) else source.columns
    columns = [names[column] for column in np.flatnonzero(bad.any(axis=0)).tolist()] if names else []
    within = f", of {named(columns)}" if columns else ""
    overflow = bool(np.isfinite(values[bad].astype(np.float64)).any())
    what = f"values beyond {dtype}" if overflow else "NaN or infinity"
    fix = "scale them" if overflow else "fill in these values (SimpleImputer) or leave out the rows"
    more = " (float32 reaches further)" if overflow and dtype == "float16" else ""
    raise InputError(f"{source.place} has {what} in {first_rows(rows)}{within}: {fix}{more}")
