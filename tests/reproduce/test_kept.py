"""An interrupted run goes on where it stopped, and a piece is what it is computed from."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.reproduce import DataFiles, Effort, Figure, Setting, table_named
from tests.reproduce.kept import Kept
from tests.reproduce.table import run_all
from topline.pipeline.errors import InputError

_DONE: list[float] = []


def _sum(setting: Setting, values: np.ndarray, fails_at: float) -> float:
    total = float(values.sum()) + setting.seed
    if total == fails_at:
        raise RuntimeError("interrupted")
    _DONE.append(total)
    return total


class _Counts:
    """Somebody who watches, and changes while watching."""

    def __init__(self) -> None:
        self.count = 0

    def begin(self, stage: str, total: int | None = None, unit: str = "") -> None:
        self.stage = stage, total, unit

    def advance(self, amount: int = 1) -> None:
        self.count += amount

    def note(self, facts: object) -> None:
        self.facts = facts


def _run(folder: Path, seed: int, fails_at: float, values: float = 1.0) -> tuple[list[float], float]:
    _DONE.clear()
    setting = Setting(DataFiles(()), Effort.TINY, seed, _Counts(), Kept(folder))
    jobs = [partial(_sum, setting, np.full(3, values * place), fails_at) for place in range(4)]
    found = run_all(setting, "add", jobs, cores=1)
    assert setting.kept is not None
    return found, setting.kept.seconds


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="interrupted"):
        _run(tmp_path, 0, fails_at=6.0)
    before = list(_DONE)
    assert 0.0 in before
    assert 3.0 in before
    assert not list(tmp_path.glob("*.part"))
    # What fails is part of what a piece is computed from: here it is only looked at after the sum.
    for path in tmp_path.glob("*.json"):
        piece = json.loads(path.read_text())
        path.write_text(json.dumps({**piece, "seconds": piece["seconds"] + 7.0}))
    with pytest.raises(RuntimeError, match="interrupted"):
        _run(tmp_path, 0, fails_at=6.0)
    assert not set(_DONE) & set(before)


def test_a_piece_is_known_by_what_it_is_computed_from(tmp_path: Path) -> None:
    first, earlier = _run(tmp_path, 0, fails_at=-1.0)
    assert (first, earlier, sorted(_DONE)) == ([0.0, 3.0, 6.0, 9.0], 0.0, first)
    for path in tmp_path.glob("*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "seconds": 7.0}))
    again, earlier = _run(tmp_path, 0, fails_at=-1.0)
    assert (again, earlier, _DONE) == (first, 28.0, [])
    for change in ({"seed": 1}, {"seed": 0, "values": 2.5}):
        other, earlier = _run(tmp_path, fails_at=-1.0, **change)  # type: ignore[arg-type]
        assert other != first
        assert len(_DONE) >= 3


def test_a_file_that_is_no_piece_is_named(tmp_path: Path) -> None:
    _run(tmp_path, 0, fails_at=-1.0)
    torn = next(tmp_path.glob("*.json"))
    torn.write_text(torn.read_text()[:-3])
    with pytest.raises(InputError, match=torn.name):
        _run(tmp_path, 0, fails_at=-1.0)


def _squares(count: int) -> np.ndarray:
    _DONE.append(count)
    return np.arange(count) ** 2


def test_arrays_are_computed_every_time(tmp_path: Path) -> None:
    _DONE.clear()
    kept = Kept(tmp_path)
    assert [kept.done(partial(_squares, 3)).tolist() for _ in range(2)] == [[0, 1, 4]] * 2
    assert (_DONE, list(tmp_path.iterdir())) == ([3, 3], [])


@pytest.mark.parametrize("table", ["at-k-classification", "letter", "multitask", "top-k-calibration"])
def test_a_table_from_kept_pieces_is_the_same(table: str, stand_ins: Path, tmp_path: Path) -> None:
    def figures() -> tuple[Figure, ...]:
        return (
            table_named(table).run(Setting(DataFiles((stand_ins,)), Effort.TINY, kept=Kept(tmp_path))).figures
        )

    first = figures()
    assert list(tmp_path.glob("*.json"))
    assert figures() == first
