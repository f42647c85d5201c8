"""The guide's tables name what exists, and the generated one is what its command prints."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.reproduce.systems import experiments_table

TESTS = Path(__file__).parents[1]
GUIDE = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")


def errata() -> list[list[str]]:
    """Return the cells of each row of errata."""
    section = GUIDE.split("## Errata that bear on a figure")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    return [re.split(r"(?<!\\) ?\| ?", row.strip("| ")) for row in rows]


@cache
def names_in(path: str) -> set[str]:
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}


@pytest.mark.parametrize("row", errata(), ids=lambda row: row[0])
def test_an_erratum_names_tests_that_exist(row: list[str]) -> None:
    assert len(row) == 5
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", row[4])
    assert len(named) == len(row[4].split(", ")) > 0
    for path, name in named:
        assert name.startswith("test_")
        assert name in names_in(path)


@pytest.mark.parametrize("row", errata(), ids=lambda row: row[0])
def test_an_erratum_is_short_sentences_that_a_newcomer_reads(row: list[str]) -> None:
    """What is printed is one sentence, what is right a few; a semicolon would join two errors."""
    printed, right = (re.split(r"(?<=\.) (?=[A-Z\d])", cell) for cell in row[1:3])
    assert len(printed) == 1
    assert 1 <= len(right) <= 3
    for sentence in (*printed, *right):
        assert sentence[0].isupper() or sentence[0].isdigit()
        assert sentence.endswith(".")
        assert len(sentence.split()) <= 26


def test_a_place_has_one_erratum() -> None:
    places = [row[0] for row in errata()]
    assert len(set(places)) == len(places) > 20


def test_experiments_are_those_that_the_command_prints() -> None:
    """Where they differ, replace the lines between the two marks by the second table of the command."""
    block = GUIDE.split("<!-- experiments: what the command prints -->\n")[1].split("\n<!-- end -->")[0]
    assert block.splitlines() == experiments_table()
