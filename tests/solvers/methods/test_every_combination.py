"""Every loss with every method, smoothing and weighting: solved to the same optimum, or refused by name.

Every pair of a loss, a method, a smoothing and a weighting is tried by default, and all products of them
with `-m slow`.
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
from topline import METHODS

WEIGHTED = [case for case in {case for _, case in ALLOWED} if case.weighted and case.convex]


def values_of(combination: tuple[str, Case]) -> tuple[object, ...]:
    method, case = combination
    smoothing = case.kind if case.smoothing else "none"
    return method, case.loss.name, smoothing, case.weighted, case.several


def pairs_first(every: list[tuple[str, Case]], methods: Collection[str] = METHODS) -> pytest.MarkDecorator:
    """Parametrise over all combinations of some methods, those slow that the default run can do without.

    With the scope of a class the tests of one combination follow each other, mostly in one process, where
    the solution is kept for all of them.
    """
    chosen = set(covering_array(every, values_of))
    cases = [
        pytest.param(each, marks=() if each in chosen else pytest.mark.slow, id=name_of(each))
        for each in every
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


def test_chosen_combinations_have_every_pair_of_values() -> None:
    def pairs(chosen):
        return {pair for each in chosen for pair in combinations(enumerate(values_of(each)), 2)}

    for every in (ALLOWED, REFUSED):
        chosen = covering_array(every, values_of)
        assert pairs(chosen) == pairs(every)
        assert len(chosen) < len(every) / 2


def test_no_method_is_left_out_and_each_is_for_something() -> None:
    allowed = {method for method, _ in ALLOWED}
    assert allowed == set(METHODS)
    assert set(FITS) | set(SLOW) <= set(METHODS)
    assert len(ALLOWED) + len(REFUSED) == len(METHODS) * len(CASES)
    assert {case for _, case in ALLOWED} >= {case for case in CASES if case.convex and case.smoothing == 0}
