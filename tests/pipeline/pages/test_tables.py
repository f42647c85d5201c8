from __future__ import annotations

import csv
import io
import json
from urllib.parse import unquote

import numpy as np
import pytest

from topline.pipeline.pages import Column, ConfusionMatrix, Table, TableCell, macros, percent
from topline.pipeline.pages.tables import MOST_ROWS

NASTY = '<script>alert("x")</script> & "mug"'


def rows_of(url: str) -> list[list[str]]:
    head, _, text = url.partition(",")
    assert head == "data:text/csv;charset=utf-8"
    return list(csv.reader(io.StringIO(unquote(text), newline="")))


def test_a_table_is_offered_as_csv_with_its_values_as_they_were_measured() -> None:
    columns = (Column("class"), Column("top-1", "n", percent), Column("state"))
    rows = [
        (NASTY, 0.123456, TableCell("champion", "good", "forced")),
        ("=1+1", None, TableCell("m0001")),
    ]
    table = Table.of("classes", columns, rows)
    assert rows_of(table.csv) == [
        ["class", "top-1", "state"], [NASTY, "0.123456", "champion forced"], ["'=1+1", "", "m0001"],
    ]  # fmt: skip
    page = str(macros().table(table))
    assert NASTY not in page
    assert "12.3%" in page
    assert 'data-v="0.123456"' in page
    assert 'download="classes.csv"' in page
    assert "<a href" not in page.replace("<a download", "")


def test_a_long_table_is_shown_in_part_and_downloaded_whole() -> None:
    table = Table.of("rows", (Column("row", "n"),), [(i,) for i in range(MOST_ROWS + 5)])
    assert len(table.shown) == MOST_ROWS
    assert len(rows_of(table.csv)) == MOST_ROWS + 6
    assert "The first 1,000 of 1,005 rows" in str(macros().table(table))


@pytest.mark.parametrize("tiles", range(1, 19))
def test_no_tile_stands_alone_in_the_last_row(tiles: int) -> None:
    page = str(macros().tiles([{"label": "a", "figure": "1", "note": "", "tone": ""}] * tiles))
    columns = int(page.partition("tilegrid c")[2][0])
    assert columns <= 6
    assert tiles == 1 or tiles % columns != 1


def test_a_confusion_matrix_is_sorted_by_name_by_mistakes_and_by_likeness() -> None:
    counts = np.array([[5, 0, 5, 0], [0, 9, 0, 1], [4, 0, 6, 0], [0, 0, 0, 20]])
    matrix = ConfusionMatrix(("b", "D", "a", "c"), counts)
    orders = dict(json.loads(matrix.orders))
    assert orders["by name"] == [2, 0, 3, 1]
    assert orders["worst first"] == [0, 2, 1, 3]
    assert orders["largest first"][0] == 3
    alike = orders["alike together"]
    assert sorted(alike) == [0, 1, 2, 3]
    assert abs(alike.index(0) - alike.index(2)) == 1
    assert rows_of(matrix.csv)[1] == ["b", "5", "0", "5", "0"]
    shades = [cell.kind for _, cells in matrix.rows for cell in cells]
    assert shades[0] == "hit l3"
    assert shades[1] == "miss l0"
    assert shades[-1] == "hit l6"
