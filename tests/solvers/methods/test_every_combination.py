"""Every loss with every method, smoothing and weighting: solved to the same optimum, or refused by name.

Every pair of a loss, a method, a smoothing and a weighting is tried by default, and every three of them with
`-m slow`.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations

import pytest

from tests.contracts.covering import covering_array
from tests.contracts.solver_contract import (
    ALLOWED,
    CASES,
    FITS,
    LAM,
    REFUSED,
    SLOW,
    WEIGHTS,
    Case,
    RefusalContract,
    SlowMethodContract,
    SolverContract,
    X,
    best_of,
    name_of,
)
from tests.reference.training_qp import optimum
from tests.solvers.problems import M
from topline.solvers.methods import METHODS

WEIGHTED = [case for case in {case for _, case in ALLOWED} if case.weighted and case.convex]


def values_of(combination: tuple[str, Case]) -> tuple[object, ...]:
    method, case = combination
    smoothing = case.kind if case.smoothing else "none"
    return method, case.loss.name, smoothing, case.weighted, case.several


def pairs_of(every: list[tuple[str, Case]]) -> list[tuple[str, Case]]:
    return covering_array(every, values_of)


def triples_of(every: list[tuple[str, Case]]) -> list[tuple[str, Case]]:
    return covering_array(every, values_of, 3, beside=pairs_of(every))


def pairs_first(every: list[tuple[str, Case]], methods: Collection[str] = METHODS) -> pytest.MarkDecorator:
    """Parametrise over the combinations of some methods that hold every three values, slow beyond every two.

    With the scope of a class the tests of one combination follow each other, mostly in one process, where
    the solution is kept for all of them.
    """
    cases = [
        pytest.param(each, marks=marks, id=name_of(each))
        for some, marks in ((pairs_of(every), ()), (triples_of(every), pytest.mark.slow))
        for each in some
        if each[0] in methods
    ]
    return pytest.mark.parametrize("combination", cases, scope="class")


@pairs_first(ALLOWED)
class TestEveryAllowedCombination(SolverContract):
    pass


@pairs_first(ALLOWED, SLOW)
class TestEveryCombinationOfASlowMethod(SlowMethodContract):
    pass


@pairs_first(REFUSED)
class TestEveryOtherCombination(RefusalContract):
    pass


@pytest.mark.parametrize("case", sorted(WEIGHTED, key=str), ids=str)
def test_examples_without_weight_might_as_well_be_left_out(case) -> None:
    """The risk is not divided by the sum of the weights: n' of n examples at lam n / n' have P n / n'."""
    kept = WEIGHTS > 0
    share = kept.sum() / len(kept)
    labels = [label for label, there in zip(case.labels, kept, strict=True) if there]
    less = optimum(X[kept], labels, case.loss, LAM / share, case.smoothing, M, case.kind, WEIGHTS[kept])
    assert best_of(case) == pytest.approx(less * share, rel=1e-8)


@pytest.mark.parametrize("strength", [2, 3])
def test_chosen_combinations_have_all_values_that_meet(strength) -> None:
    def meetings(some):
        return {met for each in some for met in combinations(enumerate(values_of(each)), strength)}

    for every in (ALLOWED, REFUSED):
        few = pairs_of(every) + (triples_of(every) if strength == 3 else [])
        assert meetings(few) == meetings(every)
        assert len(few) < len(every) * strength / 4


def test_no_method_is_left_out_and_each_is_for_something() -> None:
    allowed = {method for method, _ in ALLOWED}
    assert allowed == set(METHODS)
    assert set(FITS) | set(SLOW) <= set(METHODS)
    assert len(ALLOWED) + len(REFUSED) == len(METHODS) * len(CASES)
    assert {case for _, case in ALLOWED} >= {case for case in CASES if case.convex and case.smoothing == 0}
