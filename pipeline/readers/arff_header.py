"""What an ARFF file says before its data: the attributes, and which of them are labels."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from topline.pipeline.errors import InputError
from topline.pipeline.readers.features import LABEL_NAMES
from topline.pipeline.readers.text_rows import line_blocks

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
        """What it holds where a sparse row leaves it out."""
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


def read_header(path: Path) -> ArffHeader:
    """Read what stands before the data; `InputError` naming the line that cannot be read."""
    relation, attributes = "", list[Attribute]()
    for number, line in _lines(path):
        keyword = line.split(None, 1)[0].lower() if line else ""
        if keyword == "@relation":
            relation = line[len(keyword) :].strip()
        elif keyword == "@attribute":
            attributes.append(_attribute(line, f"{path}, line {number}"))
        elif keyword == "@data":
            return _checked(path, ArffHeader(relation, tuple(attributes), number))
        elif line and not line.startswith("%"):
            raise InputError(f"{path}, line {number}: an ARFF file has @attribute lines before @data")
    raise InputError(f"{path} has no @data: it is no ARFF file, or cut short")


def read_label_names(path: Path) -> list[str]:
    """Names of the label attributes from Mulan's XML file, nested ones after those that hold them."""
    try:
        # Entities of an own document type are all that could make a small file large, and expat limits them.
        root = ET.parse(path).getroot()  # noqa: S314
    except (OSError, ET.ParseError) as error:
        raise InputError(f"{path} cannot be read as Mulan's XML of label names: {error}") from error
    names = [element.get("name", "") for element in root.iter() if element.tag.rpartition("}")[2] == "label"]
    if not names or not all(names) or len(set(names)) < len(names):
        raise InputError(f"{path} names a different label in each <label name=...>, and at least one")
    return names


def set_attributes(path: Path, header: ArffHeader, wanted: Sequence[str] | None) -> list[int] | None:
    """Places of the attributes that make label sets: the wanted ones, those of MEKA's -C, or None."""
    places = {name: place for place, name in enumerate(header.names)}
    if wanted is not None:
        missing = [name for name in wanted if name not in places]
        if missing:
            raise InputError(
                f"{path} has no attribute {missing[0]!r}, which is a label by --labels: take the XML file"
                " that belongs to it"
            )
        return [places[name] for name in wanted]
    meka = _MEKA.search(header.relation)
    if meka is None:
        return None
    count = int(meka.group(1))
    if not 0 < abs(count) < len(places):
        raise InputError(f"{path} has -C {count} in its relation, and {len(places)} attributes: mend it")
    return list(range(count) if count > 0 else range(len(places) + count, len(places)))


def single_attribute(path: Path, header: ArffHeader, wanted: str | None) -> int | None:
    """Place of the attribute that holds one label a row: the wanted one, or one with a usual name."""
    if wanted is not None:
        if wanted not in header.names:
            raise InputError(f"{path} has no attribute {wanted!r}: it has {', '.join(header.names[:5])} ...")
        return header.names.index(wanted)
    return next((i for i, name in enumerate(header.names) if name.lower() in LABEL_NAMES), None)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of a file with their numbers, from 1."""
    for number, lines in line_blocks(path):
        for place, line in enumerate(lines):
            text = line.decode("utf-8", "replace").strip().removeprefix("\ufeff")
            yield number + place + 1, text


def _attribute(line: str, place: str) -> Attribute:
    found = _ATTRIBUTE.match(line)
    name, kind = (found.group(1), found.group(2).strip()) if found else ("", "")
    if kind.startswith("{") and kind.endswith("}"):
        return Attribute(unquoted(name), split_values(kind[1:-1]))
    if kind.split(None, 1)[:1] and kind.split(None, 1)[0].lower() in NUMBERS:
        return Attribute(unquoted(name))
    raise InputError(f"{place}: an attribute is numeric or {{a, b, ...}}, not {kind or line!r}")


def _checked(path: Path, header: ArffHeader) -> ArffHeader:
    if len(set(header.names)) < len(header.names):
        twice = next(name for name in header.names if header.names.count(name) > 1)
        raise InputError(f"{path} has two attributes {twice!r}: give each its own name")
    return header


def split_values(text: str) -> tuple[str, ...]:
    """Values with commas between them, some of them in quotes."""
    if not text.strip():
        return ()
    if "'" not in text and '"' not in text:
        return tuple(part.strip() for part in text.split(","))
    return tuple(unquoted(found.group(1)) for found in _VALUE.finditer(text) if found.group(0))


def unquoted(word: str) -> str:
    """Give a name or value without its quotes and what they escape."""
    if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", word[1:-1])
    return word


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
