"""The page of labels in dispute: pictures with given and suggested label, and what lies nearest to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from topline.pipeline.images import SourceImages, thumbnail_or_reason
from topline.pipeline.inspection.duplicates import CompareRows, Duplicate, Neighbour
from topline.pipeline.inspection.verdicts import Suspect
from topline.pipeline.pages import Column, Table, csv_url, make_page
from topline.storage.datasets import Dataset
from topline.storage.records import now

#: Labels in dispute that have a card, and neighbours on it.
SHOWN, NEAR = 60, 3


@dataclass(frozen=True)
class Near:
    """A neighbour with its picture, if there is one."""

    sample_id: str
    label: str
    cosine: float
    picture: str | None


@dataclass(frozen=True)
class Card:
    """A label in dispute; `note` says why there is no picture."""

    suspect: Suspect
    picture: str | None
    note: str
    neighbours: tuple[Near, ...]


@dataclass(frozen=True, eq=False)
class Shown:
    """What the page is about."""

    model: str
    dataset: Dataset
    total: int
    disputed: int
    rows: Sequence[int]
    suspects: Sequence[Suspect]
    duplicates: Sequence[Duplicate] | None
    boundary: Mapping[str, Sequence[str]]
    compare: CompareRows | None
    second_opinion: bool


def write_page(path: Path, shown: Shown) -> None:
    """Write the page; what is there is replaced."""
    make_page(
        "inspect.html.j2",
        model=shown.model,
        dataset=shown.dataset.info.id,
        total=shown.total,
        disputed=shown.disputed,
        second_opinion=shown.second_opinion,
        cards=_cards(shown),
        csv=csv_url([field.name for field in fields(Suspect)], [astuple(one) for one in shown.suspects]),
        duplicates=_duplicates(shown.duplicates),
        boundary=_boundary(shown.boundary),
        created=now(),
    ).write(path)


def _duplicates(found: Sequence[Duplicate] | None) -> Table:
    columns = [Column("row"), Column("label"), Column("split")]
    empty = "No two rows that lie almost on each other have two labels or lie in two splits."
    return Table.of(
        "near-duplicates",
        [*columns, *columns, Column("cosine", "n", lambda value: f"{value:.5f}")],
        [astuple(one) for one in found or ()],
        empty=empty if found is not None else "Not looked for: there are too many rows to compare.",
    )


def _boundary(found: Mapping[str, Sequence[str]]) -> Table:
    rows = [(name, ", ".join(rows)) for name, rows in found.items()]
    return Table.of("rows-that-carry-a-class", [Column("class"), Column("rows")], rows)


def _cards(shown: Shown) -> list[Card]:
    pictures = _Pictures(shown.dataset)
    rows, suspects = shown.rows[:SHOWN], shown.suspects[:SHOWN]
    near = [()] * len(rows) if shown.compare is None else shown.compare.near(rows, NEAR)
    cards = []
    for row, suspect, neighbours in zip(rows, suspects, near, strict=True):
        picture, note = pictures.of(row)
        cards.append(Card(suspect, picture, note, tuple(map(pictures.near, neighbours))))
    return cards


class _Pictures:
    """Thumbnails of rows, as far as the images are where they were."""

    def __init__(self, dataset: Dataset) -> None:
        self._manifest, self._source = dataset.manifest(), SourceImages(dataset.info.features)

    def of(self, row: int) -> tuple[str | None, str]:
        """Return the picture of a row, or None and why."""
        return thumbnail_or_reason(lambda: self._source(self._manifest.slice(row, 1).to_pylist()[0]))

    def near(self, neighbour: Neighbour) -> Near:
        """Return a neighbour with its picture."""
        return Near(neighbour.sample_id, neighbour.label, neighbour.cosine, self.of(neighbour.row)[0])
