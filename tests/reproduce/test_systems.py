"""The table of systems names what exists."""

from __future__ import annotations

import pytest

from tests.reproduce.systems import ROOT, System, main, systems

MISSING = {"S6"}


@pytest.mark.parametrize("row", systems(), ids=lambda row: row.key)
def test_a_system_is_where_the_table_says(row: System) -> None:
    assert row.what
    assert row.reach
    if row.key in MISSING:
        assert not row.name
        return
    row.found()
    assert (ROOT / row.test).is_file()
    assert row.tests()


def test_the_table_has_a_line_a_system(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(systems()) + 2
    assert all(line.count(" | ") == lines[0].count(" | ") for line in lines[2:])
