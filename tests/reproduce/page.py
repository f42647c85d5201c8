"""The page of tables: the papers' figures and ours as pictures and in words, in one HTML file."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from tests.reproduce.score import Score, verdict
from tests.reproduce.table import Figure, Reproduction, Table
from topline.pipeline.errors import InputError
from topline.pipeline.pages import environment, make_page
from topline.pipeline.pages.charts import WIDTH, Scale

HERE = Path(__file__).parent

RIGHT, ROW, TOP, FOOT = 20, 22, 8, 26
#: Names of rows stand left of their lines: pixels of a letter, and the most that all of them get.
LETTER, MOST_LEFT = 6.4, 300


@dataclass(frozen=True, eq=False)
class Part:
    """A table on a page: what came of it, and the processor seconds it took, None where nobody counted."""

    table: Table
    found: Reproduction
    seconds: float | None = None

    @property
    def score(self) -> Score:
        """Wins and losses."""
        return Score.of(self.found.figures)

    @property
    def compared(self) -> int:
        """Figures with a paper's and a spread."""
        return sum(figure.within is not None and figure.counts for figure in self.found.figures)

    @property
    def within(self) -> int:
        """Those of them within two standard deviations."""
        return sum(bool(figure.within) and figure.counts for figure in self.found.figures)

    def panels(self) -> list[tuple[str, Markup]]:
        """Draw a panel for each column in which a figure of the paper stands beside ours."""
        return panels(self.found.figures)

    def written(self, value: float | None, sign: str = "") -> str:
        """Write a figure as the table does."""
        return "" if value is None else f"{value:{sign}{self.found.number}}"


def write_page(parts: Sequence[Part], path: Path, left_out: Mapping[str, str] | None = None) -> None:
    """Write the page of one table, or of all where `left_out` says by their names why some were not run.

    A page that is there is replaced.
    """
    try:
        path.write_text(render(parts, left_out), encoding="utf-8")
    except OSError as error:
        raise InputError(f"the page {path} cannot be written: {error.strerror}") from error


def render(parts: Sequence[Part], left_out: Mapping[str, str] | None = None) -> str:
    """Make the page."""
    alone = left_out is None
    return make_page(
        environment().from_string((HERE / "page.html.j2").read_text(encoding="utf-8")),
        style=(HERE / "page.css").read_text(encoding="utf-8"),
        parts=parts,
        alone=alone,
        left_out=left_out or {},
        whole=Score.of([figure for part in parts for figure in part.found.figures]),
        verdict=verdict,
        created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    ).html


def panels(figures: Sequence[Figure]) -> list[tuple[str, Markup]]:
    """Draw a panel for each column in which a figure of the paper stands beside ours."""
    columns = list(dict.fromkeys(figure.column for figure in figures if figure.paper is not None))
    return [(column, side_by_side([one for one in figures if one.column == column])) for column in columns]


def side_by_side(figures: Sequence[Figure]) -> Markup:
    """Draw a line a row: ours as a bar of two standard deviations around a disc, the paper's as a ring."""
    ends = [end for figure in figures for end in _ends(figure)]
    low, high = min(ends), max(ends)
    air = 0.04 * (high - low) or 0.05 * abs(high) or 1.0
    left = min(MOST_LEFT, 24 + LETTER * max(len(figure.row) for figure in figures))
    axis = Scale(low - air, high + air, left, WIDTH - RIGHT)
    height = ROW * len(figures) + TOP + FOOT
    bottom = height - FOOT
    parts = [
        Markup(
            '<line class="grid" x1="{0:.1f}" x2="{0:.1f}" y1="0" y2="{1}"/>'
            '<text class="tick" x="{0:.1f}" y="{2}" text-anchor="middle">{3:.6g}</text>'
        ).format(axis(value), bottom, bottom + 17, value)
        for value in axis.ticks()
    ]
    parts += [_line(figure, axis, TOP + ROW * (place + 0.5)) for place, figure in enumerate(figures)]
    return Markup(
        '<svg viewBox="0 0 {0} {1}" role="img" aria-label="the paper\'s figures and ours">{2}</svg>'
    ).format(WIDTH, height, Markup("").join(parts))


def _line(figure: Figure, axis: Scale, y: float) -> Markup:
    spread = 2.0 * (figure.spread or 0.0)
    drawn = Markup(
        '<text class="tick" x="{0:.1f}" y="{1:.1f}" text-anchor="end">{2}</text>'
        '<line class="span" x1="{3:.1f}" x2="{4:.1f}" y1="{5:.1f}" y2="{5:.1f}"/>'
        '<circle class="ours" cx="{6:.1f}" cy="{5:.1f}" r="4"><title>ours {7:.6g}</title></circle>'
    ).format(
        axis.start - 10, y + 4, figure.row, axis(figure.ours - spread), axis(figure.ours + spread), y,
        axis(figure.ours), figure.ours,
    )  # fmt: skip
    if figure.paper is None:
        return drawn
    return drawn + Markup(
        '<circle class="paper" cx="{0:.1f}" cy="{1:.1f}" r="5"><title>paper {2:.6g}</title></circle>'
    ).format(axis(figure.paper), y, figure.paper)


def _ends(figure: Figure) -> list[float]:
    spread = 2.0 * (figure.spread or 0.0)
    paper = [] if figure.paper is None else [figure.paper]
    return [figure.ours - spread, figure.ours + spread, *paper]
