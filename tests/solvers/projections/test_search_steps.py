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

from topline.solvers.losses import exponential
from topline.solvers.projections import (
    binary,
    column_workspace,
    entropic,
    scaled_permutahedron,
    weighted_topk,
    weighted_usunier,
)
from topline.solvers.projections.ordering import select_largest

M, DRAWS = 60, 80


def plain(function: Any) -> Any:
    """Return a compiled function as Python, which looks up in its module what it calls."""
    return getattr(function, "py_func", function)


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


def _wtopk(b, c, random):
    rho = np.array(exponential(int(random.integers(1, 9))))
    return plain(weighted_topk.wtopk_column)(b, 0, c, rho, np.empty(M), *column_workspace(M))


def _scaled(b, c, random):
    rho = np.array(exponential(int(random.integers(1, 9))))
    arguments = (b, 0, c, c, rho, 1.0, np.empty(M), *column_workspace(M))
    return plain(scaled_permutahedron.scaled_permutahedron)(*arguments)


def _two(b, c, random):
    rho = np.array(exponential(int(random.integers(1, 9))))
    arguments = (b, 0, c, 0.3 * c, rho, np.empty(M), *column_workspace(M))
    return plain(weighted_topk.wtopk_two_curvatures_column)(*arguments)


def _usunier(b, c, random):
    rho = np.array(exponential(int(random.integers(1, 9))))
    return plain(weighted_usunier.wusunier_column)(b, 0, c, 0.5 * c, rho, np.empty(M), *column_workspace(M))


def _entropic(b, c, random):
    k = int(random.integers(1, 9))
    return plain(entropic.entropic_column)(b, 0, c, k, np.empty(M), column_workspace(M)[0], False)


def _entropic_single(b, c, random):
    return plain(entropic.entropic_column)(b, 0, c, 1, np.empty(M), column_workspace(M)[0], True)


def _logistic(b, c, random):
    return plain(binary.logistic_weight)(float(b[1]), c)


#: What is counted where, and the mean and the most over the draws: a twentieth above what they are, for
#: rounding differs from machine to machine.
COUNTED = {
    "weighted top-k": (weighted_topk, "next_scale", _wtopk, 1.75, 7),
    "scaled permutahedron": (scaled_permutahedron, "next_scale", _scaled, 1.56, 3),
    "two curvatures": (weighted_topk, "next_scale", _two, 1.51, 8),
    "entropy": (entropic, "entropic_step", _entropic, 4.75, 6),
    "entropy in float32": (entropic, "entropic_step", _entropic_single, 3.75, 5),
    "logistic": (binary, "_sigmoid", _logistic, 5.17, 7),
}


@pytest.mark.parametrize("name", COUNTED)
def test_searches_end_after_few_evaluations(name, monkeypatch) -> None:
    module, function, solve, mean, most = COUNTED[name]
    taken = each(solve, Count(monkeypatch, module, function))
    assert taken.mean() <= mean
    assert taken.max() <= most


@pytest.mark.parametrize(
    ("module", "solve", "most"),
    [
        (weighted_topk, _wtopk, 8.7),
        (scaled_permutahedron, _scaled, 6.6),
        (weighted_topk, _two, 13.3),
        (weighted_usunier, _usunier, 7.4),
    ],
    ids=lambda value: getattr(value, "__name__", "").split(".")[-1],
)
def test_few_classes_are_sorted(module, solve, most, monkeypatch) -> None:
    """Of 60 classes those that can have mass."""
    count = Count(monkeypatch, module, "sorted_candidates")
    each(solve, count)
    assert np.mean(count.given) <= most


class Read(list[float]):
    """Values that count how often one of them is read."""

    reads = 0

    def __getitem__(self, place: Any) -> Any:
        self.reads += 1
        return super().__getitem__(place)


def test_selection_reads_sorted_values_a_few_times_each() -> None:
    """The middle of three as pivot: in order, in reverse, and in a random order."""
    n = 255
    rising = np.arange(n, dtype=float)
    for order in (rising, rising[::-1], np.random.default_rng(1).permutation(rising)):
        for count in (1, n // 3, n // 2, n):
            values = Read(order.tolist())
            plain(select_largest)(values, n, count)
            assert sorted(values[:count]) == rising[n - count :].tolist()
            assert values.reads <= 4 * n
