from __future__ import annotations

import math
from pathlib import Path

import pytest

from pipeline.reproduce import SOURCES, TABLES, DataFiles, Effort, Figure, Reproduction, Setting, reproduce
from pipeline.reproduce.page import render
from pipeline.reproduce.table import over_splits
from tests.pipeline.reproduce.stand_ins import WRITERS, write_all

PAPERS = ("Hirohashi and Kato", "Lapin", "Fan et al.", "Tajima et al.")


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_all(tmp_path_factory.mktemp("public"))


def test_every_data_set_has_a_stand_in() -> None:
    assert set(WRITERS) == set(SOURCES)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_says_where_it_is_from_and_runs(name: str, stand_ins: Path) -> None:
    table = TABLES[name]
    assert table.source.startswith(PAPERS)
    found = reproduce(table, Setting(DataFiles((stand_ins,)), Effort.TINY))
    check_contract(found)
    page = render(table, found)
    assert "://" not in page
    assert table.title.split("(")[0] in page


def check_contract(found: Reproduction) -> None:
    """The paper's figures beside ours, and a note for each that can differ."""
    assert found.figures
    assert any(figure.paper is not None for figure in found.figures)
    for figure in found.figures:
        assert math.isfinite(figure.ours), figure
        assert figure.spread is None or figure.spread >= 0.0
        if figure.paper is not None:
            assert figure.note in found.notes, figure
    assert found.protocol
    assert all(text.strip() for text in (*found.protocol.values(), *found.notes.values()))


def test_a_difference_is_judged_by_both_spreads() -> None:
    ours = over_splits("row", "top-1", [70.0, 72.0], paper=75.0, paper_spread=1.5)
    assert ours.ours == 71.0
    assert ours.spread == pytest.approx(math.sqrt(2.0))
    assert ours.difference == -4.0
    assert ours.within  # 4 <= 2 sqrt(2 + 2.25)
    assert not over_splits("row", "top-1", [70.0, 72.0], paper=75.0).within  # 4 > 2 sqrt(2)
    assert Figure("row", "top-1", 71.0, paper=75.0).within is None
    assert over_splits("row", "top-1", [70.0, 72.0]).within is None
