"""Margins of the structured hinge as options name them: a matrix in a file, class sizes or a tree."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.errors import InputError
from topline.solvers.losses import ldam_margins, logit_adjusted_margins, tree_margins

#: Rules that go by the training rows of each class, with the number that each takes where none is given.
BY_SIZE = {"logit-adjusted": (logit_adjusted_margins, 1.0), "ldam": (ldam_margins, 0.25)}
TREE = "tree:"


@dataclass(frozen=True)
class ClassFacts:
    """What margins may go by: the classes in the order of their labels, and the training rows of each."""

    names: Sequence[str]
    counts: Sequence[int]


def make_margins(text: str, facts: ClassFacts | None, m: int) -> NDArray[np.float64]:
    """Return the (m, m) margins that `text` names; of a rule the usual ones where no `facts` are known yet.

    `InputError` for a file that cannot be read, and for a rule with something else than a number.
    """
    name, _, argument = text.partition(":")
    if name in BY_SIZE:
        rule, default = BY_SIZE[name]
        try:
            number = float(argument) if argument else default
        except ValueError:
            raise InputError(f"margins {text}: give a number, as in {name}:{default:g}") from None
        return rule([1] * m if facts is None else facts.counts, number)
    if text.startswith(TREE):
        pairs = read_tree(Path(argument))
        return 1.0 - np.eye(m) if facts is None else tree_margins(facts.names, pairs)
    return read_margins(Path(text))


def read_margins(path: Path) -> NDArray[np.float64]:
    """Return the m x m matrix in a .npy file or from numbers with commas between them."""
    try:
        if path.suffix.lower() == ".npy":
            return np.asarray(np.load(path, allow_pickle=False), dtype=np.float64)
        return np.loadtxt(path, delimiter=",", ndmin=2)
    except (OSError, ValueError) as error:
        raise InputError(f"margins {path} cannot be read: {error}") from error


def read_tree(path: Path) -> list[tuple[str, str]]:
    """Return the pairs of child and parent in a file, a line each.

    A CSV has child before parent, or a header that says which is which; WordNet's own form, as ImageNet's
    wordnet.is_a.txt, has parent before child with a space between.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the tree of classes {path} cannot be read: {error}") from error
    return list(_pairs(path, [line for line in lines if line.strip()]))


def _pairs(path: Path, lines: list[str]) -> Iterator[tuple[str, str]]:
    if not lines:
        raise InputError(f"the tree of classes {path} is empty: give a line of child,parent for each link")
    mark = next((mark for mark in (",", ";", "\t") if mark in lines[0]), None)
    rows: Any = csv.reader(lines, delimiter=mark) if mark else (line.split() for line in lines)
    child, parent = (0, 1) if mark else (1, 0)
    for number, row in enumerate(rows, start=1):
        cells = [cell.strip() for cell in row]
        if len(cells) < 2 or not cells[0] or not cells[1]:
            raise InputError(f"the tree of classes {path}, line {number}: give child and parent, not {row!r}")
        if number == 1 and {"child", "parent"} <= {cell.lower() for cell in cells}:
            child, parent = ([cell.lower() for cell in cells].index(word) for word in ("child", "parent"))
            continue
        yield cells[child], cells[parent]
