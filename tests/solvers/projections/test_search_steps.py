"""What the searches of the projections cost: evaluations and candidates, which no clock has to count.

A wrong slope, bound or starting point changes no result, for every search keeps a bracket and halves it where
Newton's step leaves it: only the number of steps shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from topline.solvers.losses import exponential, one_vs_all
from topline.solvers.losses.base import NO_MARGINS
from topline.solvers.projections import ColumnProblem, column_workspace, entropic, isotonic

M, DRAWS = 60, 80


def plain(function: Any) -> Any:
    """Return a compiled function as Python, which looks up in its module what it calls."""
    function = getattr(function, "_compiled", function)
    return getattr(function, "py_func", function)


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give what is borrowed as it is: the intrinsic is for compiled functions alone."""
    for module in (one_vs_all, entropic, isotonic):
        monkeypatch.setattr(module, "borrowed", lambda problem: problem)


class Count:
    """Counts the calls of a function of a module, and keeps what it gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> None:
        self.calls, self.given = 0, []
        function = getattr(module, name)

        def counted(*arguments: Any) -> Any:
            self.calls += 1
            self.given.append(function(*arguments))
            return self.given[-1]

        monkeypatch.setattr(module, name, counted)


def problems() -> Iterator[tuple[np.ndarray, float, np.random.Generator]]:
    """Draw scores beside those of the own class, class 0, and curvatures."""
    random = np.random.default_rng(0)
    for _ in range(DRAWS):
        b = random.standard_normal(M) * random.choice([0.3, 1.0, 3.0])
        b[0] = 0.0
        yield b, float(random.choice([0.02, 0.2, 1.0, 5.0])), random


def each(solve: Callable[..., Any], count: Count) -> np.ndarray:
    taken = []
    for b, c, random in problems():
        before = count.calls
        solve(b, c, random)
        taken.append(count.calls - before)
    return np.array(taken)


def _problem(b, c, c_own, rho):
    """Return the problem whose violations are b."""
    q = np.append(0.0, b[1:] - 1.0)
    return ColumnProblem(q, 0, c, c_own, rho, NO_MARGINS, np.empty(M), *column_workspace(M), False)


def _rho(random):
    return np.array(exponential(int(random.integers(1, 9))))


def _wtopk(b, c, random):
    return plain(isotonic._one_curvature)(_problem(b, c, c, _rho(random)))


def _scaled(b, c, random):
    problem = _problem(b, c, c, _rho(random))
    return plain(isotonic.scaled_permutahedron)(problem, b, c, 1.0)


def _two(b, c, random):
    return plain(isotonic._two_curvatures)(_problem(b, c, 0.3 * c, _rho(random)))


def _usunier(b, c, random):
    return plain(isotonic.wusunier_column)(_problem(b, c, 0.5 * c, _rho(random)))


def _entropic(b, c, random, *, k=None, single=False):
    work = column_workspace(M)[0]
    work = work.view(np.float32) if single else work
    u = work[5][:M]
    u[:] = np.append(c, b[1:]) - max(c, b[1:].max())
    return plain(entropic.entropic_level)(u, 0, c, k or int(random.integers(1, 9)), work)


def _entropic_single(b, c, random):
    return _entropic(b, c, random, k=1, single=True)


def _logistic(b, c, random):
    return plain(one_vs_all.logistic_weight)(float(b[1]), c)


#: What is counted where, and the mean and the most over the draws: a twentieth above what they are, for
#: rounding differs from machine to machine.
COUNTED = {
    "weighted top-k": (isotonic, "next_scale", _wtopk, 1.75, 7),
    "scaled permutahedron": (isotonic, "next_scale", _scaled, 1.56, 3),
    "two curvatures": (isotonic, "next_scale", _two, 1.51, 8),
    "entropy": (entropic, "entropic_step", _entropic, 4.75, 6),
    "entropy in float32": (entropic, "entropic_step", _entropic_single, 3.75, 5),
    "logistic": (one_vs_all, "_sigmoid", _logistic, 5.17, 7),
}


@pytest.mark.parametrize("name", COUNTED)
def test_searches_end_after_few_evaluations(name, monkeypatch) -> None:
    module, function, solve, mean, most = COUNTED[name]
    taken = each(solve, Count(monkeypatch, module, function))
    assert taken.mean() <= mean
    assert taken.max() <= most


@pytest.mark.parametrize(
    ("module", "solve", "most"),
    [(isotonic, _wtopk, 8.7), (isotonic, _scaled, 6.6), (isotonic, _two, 13.3), (isotonic, _usunier, 7.4)],
    ids=lambda value: getattr(value, "__name__", "").split(".")[-1],
)
def test_few_classes_are_sorted(module, solve, most, monkeypatch) -> None:
    """Of 60 classes those that can have mass."""
    count = Count(monkeypatch, module, "sorted_candidates")
    each(solve, count)
    assert np.mean(count.given) <= most
