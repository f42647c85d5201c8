"""An interrupted run goes on where it stopped, and a piece is what it is computed from."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.reproduce import DataFiles, Effort, Setting
from tests.reproduce.kept import Kept
from tests.reproduce.table import run_all

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
    for path in tmp_path.glob("*.pickle"):
        seconds, total = pickle.loads(path.read_bytes())
        path.write_bytes(pickle.dumps((seconds + 7.0, total)))
    with pytest.raises(RuntimeError, match="interrupted"):
        _run(tmp_path, 0, fails_at=6.0)
    assert not set(_DONE) & set(before)


def test_a_piece_is_known_by_what_it_is_computed_from(tmp_path: Path) -> None:
    first, earlier = _run(tmp_path, 0, fails_at=-1.0)
    assert (first, earlier, sorted(_DONE)) == ([0.0, 3.0, 6.0, 9.0], 0.0, first)
    for path in tmp_path.glob("*.pickle"):
        _, total = pickle.loads(path.read_bytes())
        path.write_bytes(pickle.dumps((7.0, total)))
    again, earlier = _run(tmp_path, 0, fails_at=-1.0)
    assert (again, earlier, _DONE) == (first, 28.0, [])
    for change in ({"seed": 1}, {"seed": 0, "values": 2.5}):
        other, earlier = _run(tmp_path, fails_at=-1.0, **change)  # type: ignore[arg-type]
        assert other != first
        assert len(_DONE) >= 3
