"""The table of systems names what exists, and that of experiments every table there is."""

from __future__ import annotations

from importlib import import_module

import pytest

from tests.reproduce import TABLES
from tests.reproduce.systems import Experiment, System, experiments, main, systems
from tests.reproduce.test_guide import names_in

MISSING = {"S6"}


@pytest.mark.parametrize("row", systems(), ids=lambda row: row.key)
def test_a_system_is_where_the_table_says(row: System) -> None:
    assert row.what
    assert row.reach
    if row.key in MISSING:
        assert not row.name
        return
    row.found()
    assert row.tests
    for test in row.tests:
        path, name = test.split("::")
        assert name.startswith(("test_", "Test"))
        assert name in names_in(path)


@pytest.mark.parametrize("row", experiments(), ids=lambda row: row.key)
def test_an_experiment_is_run_by_tables_or_says_what_it_lacks(row: Experiment) -> None:
    assert row.what
    assert row.tables or row.left
    for name in row.tables:
        module, _, function = name.partition(":")
        assert callable(getattr(import_module(module), function)) if function else name in TABLES


def test_no_table_is_without_its_experiment() -> None:
    assert set(TABLES) <= {name for row in experiments() for name in row.tables}


def test_the_tables_have_a_line_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    first, second = (table.splitlines() for table in capsys.readouterr().out.split("\n\n"))
    for lines, rows in ((first, systems()), (second, experiments())):
        assert len(lines) == len(rows) + 2
        assert all(line.count(" | ") == lines[0].count(" | ") for line in lines[2:])
