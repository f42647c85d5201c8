"""Every interleaving is a seed; `python -m tests.simulation --histories N --seed S` prints what they met."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.processes import run_program
from tests.simulation.planted import FOUND

ROOT = Path(__file__).resolve().parents[2]


def simulation(*words: object) -> str:
    """Run the program, which must find nothing, and return its table."""
    command = [sys.executable, "-m", "tests.simulation", *map(str, words)]
    ended = run_program(command, cwd=ROOT)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_a_few_histories() -> None:
    table = simulation("--histories", 200, "--seed", 1, "--also", *FOUND)
    assert f"{200 + len(FOUND)} histories" in table
    assert "0 violations" in table


@pytest.mark.simulation
@pytest.mark.parametrize(
    ("mix", "first", "count"), [("wide", 1, 5000), ("wide", 5001, 5000), ("close", 1, 1000)]
)
def test_eleven_thousand_histories(mix: str, first: int, count: int) -> None:
    print(simulation("--mix", mix, "--histories", count, "--seed", first))


@pytest.mark.parametrize("how", [("--as-found",), pytest.param((), marks=pytest.mark.simulation)], ids=str)
def test_every_planted_fault_is_found(how: tuple[str, ...]) -> None:
    """Each from the history on that is known to find it; among them are those that the product had."""
    assert "32 planted faults, 0 not found" in simulation("--planted", "--histories", 300, *how)
