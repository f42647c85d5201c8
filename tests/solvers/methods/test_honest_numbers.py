"""Numbers that cannot be wrong, over random problems of every size and features that invite wrong answers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from tests.contracts.covering import covering_array
from tests.contracts.solver_contract import (
    ALLOWED,
    FITS,
    LAM,
    REFUSED,
    SLOW,
    WEIGHTS,
    Case,
    EveryMethodContract,
    RefusalContract,
    SlowMethodContract,
    SolverContract,
    X,
    best_of,
    name_of,
)
from tests.contracts.solver_contract import CASES as EVERY_CASE
from tests.reference import losses as reference
from tests.reference.smooth import is_smooth
from tests.reference.training_qp import good_weights, optimum
from tests.solvers.problems import M, random_margins, several_labels
from topline import (
    MaxHinge,
    MultilabelHinge,
    MultilabelSoftmax,
    SerialExecutor,
    SolveResult,
    Status,
    StructuredHinge,
    TopKHinge,
    UnsupportedCombinationError,
    UsunierHinge,
    WeightedTopKHinge,
    WeightedUsunierHinge,
    exponential,
    linear,
    solve,
)
from topline.solvers.losses import OneVsAll, Softmax, TopKEntropy, TopKOthersHinge
from topline.solvers.methods import METHODS

SEEDS = [pytest.param(seed, marks=() if seed < 20 else pytest.mark.slow) for seed in range(120)]


@dataclass(frozen=True)
class Drawn:
    """A problem and what it was solved with."""

    X: Any
    labels: Any
    loss: Any
    lam: float
    smoothing: float
    kind: str
    weights: Any
    options: dict[str, Any]

    def primal(self, W: Any) -> float:
        return float(
            reference.primal(
                self.X, self.labels, self.loss, self.lam, self.smoothing, W, self.kind, self.weights
            )
        )

    def dual(self, A: Any) -> float:
        return float(
            reference.dual(
                self.X, self.labels, self.loss, self.lam, self.smoothing, A, self.kind, self.weights
            )
        )

    def solved(self, X: Any, **options: Any) -> SolveResult:
        return solve(
            X, loss=self.loss, lam=self.lam, smoothing=self.smoothing, smoothing_kind=self.kind,
            sample_weight=self.weights, **{**self.options, **options},
        )  # fmt: skip


def losses_of(m: int, random: np.random.Generator) -> list[Any]:
    """Every convex loss for m classes."""
    k, others = int(random.integers(1, m + 1)), int(random.integers(1, m))
    return [
        MaxHinge(), StructuredHinge(random_margins(m, seed=k)), TopKHinge(k), UsunierHinge(k),
        WeightedTopKHinge(linear(k)), WeightedUsunierHinge(exponential(k)), TopKOthersHinge(others),
        OneVsAll("hinge"), OneVsAll("logistic"), Softmax(), TopKEntropy(others), MultilabelHinge(),
        MultilabelSoftmax(),
    ]  # fmt: skip


def one_of(random: np.random.Generator, values: Any) -> Any:
    return values[int(random.integers(len(values)))]


def drawn(random: np.random.Generator) -> Drawn:
    """Draw a problem: rows of size 1e-6 to 1e6, C from 1e-6 to 1e6, either precision, any loss and method."""
    n, d, m = (int(random.integers(low, high)) for low, high in ((2, 14), (1, 6), (2, 6)))
    loss = one_of(random, losses_of(m, random))
    method = one_of(random, list(METHODS))
    smoothing = 0.0 if is_smooth(loss) else one_of(random, [0.0, 0.0, 10.0 ** random.uniform(-2, 1)])
    kind = one_of(random, ["moreau", "moreau", "others"]) if smoothing else "moreau"
    size = 10.0 ** random.uniform(-6, 6) * 10.0 ** random.uniform(-1, 1, d)
    X = (random.standard_normal((n, d)) * size).astype(one_of(random, [np.float32, np.float64]))
    labels = y = random.integers(0, m, n)
    options: dict[str, Any] = {"y": y, "m": m}
    if isinstance(loss, MultilabelHinge | MultilabelSoftmax):
        sets, codes = several_labels(y, m)
        options, labels = {"y": codes, "label_sets": sets}, [sets.labels(code) for code in codes]
    options |= {
        "method": method,
        "tol": 10.0 ** random.uniform(-10, -1),
        "max_passes": int(one_of(random, [1, 2, 3, 7, 20, 100, 400])),
        "keep_duals": bool(random.integers(2)) and not METHODS[method].dual_free,
    }
    weights = one_of(random, [None, None, random.uniform(0.1, 2.0, n)])
    lam = 1.0 / (n * 10.0 ** random.uniform(-6, 6))
    return Drawn(X, labels, loss, lam, smoothing, kind, weights, options)


def solved(seed: int) -> tuple[Drawn, SolveResult]:
    """Draw problems until one is not refused by name, and solve it on one to three blocks."""
    random = np.random.default_rng(seed)
    while True:
        case = drawn(random)
        try:
            with SerialExecutor(blocks=min(int(random.integers(1, 4)), len(case.X))) as executor:
                return case, case.solved(case.X, executor=executor)
        except UnsupportedCombinationError:
            continue


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_run_says_is_true(seed: int) -> None:
    case, result = solved(seed)
    primal = case.primal(result.W)
    slack = rounding_of(case, result.W)
    assert result.primal == pytest.approx(primal, rel=1e-9, abs=slack)
    at_zero = case.primal(np.zeros_like(result.W))
    assert result.primal <= at_zero * (1.0 + 1e-12)
    assert result.gap >= 0.0
    assert all(record.gap >= 0.0 for record in result.history)
    assert result.dual >= 0.0
    assert result.passes <= case.options["max_passes"]
    dual = check_dual_point(case, result, primal)
    if result.status is Status.SOLVED:
        # A is taken for what it is; w_i times a row of float32 is rounded once more on its way out.
        assert primal - dual <= (case.options["tol"] * (1.0 + 1e-6) + 1e-12) * primal + slack
    else:
        assert result.relative_gap > case.options["tol"]


def rounding_of(case: Drawn, W: Any) -> float:
    """Return what P by definition may be off by: scores that cancel where W is far off, in any order of sums.

    The envelope of the reference is found numerically, to some 1e-11 of the scores.
    """
    sizes = np.abs(case.X).astype(np.float64) @ np.abs(W)
    counts = 1.0 if case.weights is None else case.weights.max()
    share = 16.0 * np.finfo(np.float64).eps * W.shape[1] + (1e-11 if case.smoothing > 0 else 0.0)
    return float(counts * share * sizes.max())


def check_dual_point(case: Drawn, result: SolveResult, primal: float) -> float:
    """Check D at the dual point that came back, and return it."""
    if result.A is None:
        return result.dual
    A = np.asarray(result.A, dtype=np.float64)
    W = result.W if result.W_dual is None else result.W_dual
    # Where float32 rows count by weights, w_i times a row is rounded on its way out; and X^T A cancels at the
    # optimum, in any order of sums, where C is large.
    rounded = case.weights is not None and case.X.dtype == np.float32
    rounding = 1e-6 if rounded else 1e-9
    of_terms = np.finfo(np.float32).eps if rounded else 16.0 * np.finfo(np.float64).eps * len(A)
    terms = reference.weights_of(np.abs(case.X), case.lam, np.abs(A)).max()
    atol = rounding * np.abs(W).max() + of_terms * terms
    np.testing.assert_allclose(W, reference.weights_of(case.X, case.lam, A), rtol=0, atol=atol)
    for i, (row, label) in enumerate(zip(A, case.labels, strict=True)):
        count = 1.0 if case.weights is None else case.weights[i]
        assert reference.infeasibility(case.loss, row / count, label) <= 1e-14
    dual = case.dual(A)
    # D changes with W(A) by lam <W, dW>.
    slack = rounding * max(primal, abs(dual)) + case.lam * np.abs(W).sum() * atol
    assert result.dual == pytest.approx(dual, abs=slack)
    return dual


@pytest.mark.parametrize("seed", SEEDS)
def test_an_outside_solver_finds_no_less_than_the_dual_value(seed: int) -> None:
    """Clarabel, or SciPy's L-BFGS for smooth losses, at rows of size one; P by definition where they end."""
    case, result = solved(seed)
    W = good_weights(
        case.X, case.labels, case.loss, case.lam, case.smoothing, result.W.shape[1], case.kind, case.weights
    )
    outside = case.primal(W)
    assert result.dual <= (min(outside, result.primal) + rounding_of(case, W)) * (1.0 + 1e-12)
    # It is near the optimum itself, as far as a tolerance of 1e-10 goes, so that this says something.
    assert outside <= result.primal * (1.0 + 1e-6) + 1e-8


@pytest.mark.parametrize("seed", SEEDS[:40:2])
def test_lbfgs_does_not_give_up_far_from_the_optimum(seed: int) -> None:
    """Where pairs of the last steps lead nowhere, the steepest descent still does."""
    random = np.random.default_rng(seed)
    result = None
    while result is None:
        case = drawn(random)
        try:
            result = case.solved(case.X, method="lbfgs", tol=1e-6, max_passes=400, keep_duals=False)
        except UnsupportedCombinationError:
            continue
    assert result.status is not Status.NO_PROGRESS or result.relative_gap < 1e-5


@pytest.mark.parametrize("loss", [OneVsAll("hinge"), OneVsAll("logistic")])
@pytest.mark.parametrize("seed", [33, 35, 42])
def test_no_dual_value_is_below_that_of_no_dual_variables(loss: Any, seed: int) -> None:
    """The mixture of the last atoms, of which rounding leaves nothing at a lam so small, had D = -391."""
    random = np.random.default_rng(seed)
    X = random.standard_normal((19, 5)) * 1e8 * 10.0 ** random.uniform(-2, 1, 5)
    y = random.integers(0, 2, 19)
    result = solve(X, y, loss, 1e-13, method="fw_fully_corrective", max_passes=20, tol=1e-4, m=2)
    assert 0.0 <= result.dual <= result.primal


CASES = (
    "small", "large", "mixed", "constant", "offset", "duplicates", "one example", "absent class",
    "two classes", "fewer rows than classes", "zero",
)  # fmt: skip


def hard(case):
    """Give float32 features, labels and the number of classes."""
    random = np.random.default_rng(0)
    m, y = 5, np.arange(40) % 5
    X = random.standard_normal((40, 6))
    match case:
        case "small":
            X *= 1e-4
        case "large":
            X *= 1e4
        case "mixed":
            X *= np.array([1e-4, 1e4, 1.0, 1e-4, 1e4, 1.0])
        case "constant":
            X[:, 2:] = 3.0
        case "offset":
            X += 1e3
        case "duplicates":
            X[20:], y[20:] = X[:20], y[:20]
        case "one example":
            y = np.where(np.arange(40) == 0, 4, np.arange(40) % 4)
        case "absent class":
            y = np.arange(40) % 3
        case "two classes":
            m, y = 2, np.arange(40) % 2
        case "fewer rows than classes":
            X, y = X[:3], np.array([0, 3, 4])
        case "zero":
            X[:] = 0.0
    return X.astype(np.float32), y, m


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("method", "loss", "smoothing", "tol"),
    [
        ("dual_ascent", MaxHinge(), 0.0, 1e-4),
        ("dual_ascent", TopKHinge(2), 0.5, 1e-6),
        ("dual_ascent", Softmax(), 0.0, 1e-6),
        ("sdca", MaxHinge(), 0.0, 1e-3),
        ("sdca", TopKHinge(2), 0.5, 1e-6),
        ("sdca", Softmax(), 0.0, 1e-6),
        ("lbfgs", TopKHinge(2), 0.5, 1e-6),
        ("lbfgs", Softmax(), 0.0, 1e-6),
        ("fw_fully_corrective", TopKHinge(2), 0.0, 1e-6),
        ("fw_away", TopKHinge(2), 0.0, 0.2),
        ("fw_pairwise_columns", TopKHinge(2), 0.0, 0.2),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
@pytest.mark.sampled(4)
def test_the_certificate_holds_by_definition(case, method, loss, smoothing, tol) -> None:
    X, y, m = hard(case)
    size = float(np.mean(np.sum(X.astype(float) ** 2, axis=1))) or 1.0
    lam = 0.1 * size / len(y)
    knows_duals = not METHODS[method].dual_free
    result = solve(X, y, loss, lam, smoothing, method, tol=tol, max_passes=5000, m=m, keep_duals=knows_duals)
    assert result.status is Status.SOLVED
    P = reference.primal(X, y, loss, lam, smoothing, result.W)
    if not knows_duals:
        other = solve(X, y, loss, lam, smoothing, "dual_ascent", tol=1e-4, max_passes=5000, m=m)
        assert result.dual <= reference.primal(X, y, loss, lam, smoothing, other.W) * (1.0 + 1e-12)
        assert result.primal == pytest.approx(P, rel=1e-9)
        return
    D = reference.dual(X, y, loss, lam, smoothing, result.A)
    gap = P - D
    assert gap <= 1.001 * tol * P + 1e-14
    assert (result.primal, result.dual) == pytest.approx((P, D), rel=1e-9, abs=1e-12)
    for row, label in zip(result.A, y, strict=True):
        assert reference.infeasibility(loss, row.astype(float), label) <= 1e-6


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


@pytest.mark.parametrize("method", METHODS)
class TestEveryMethod(EveryMethodContract):
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
    assert len(ALLOWED) + len(REFUSED) == len(METHODS) * len(EVERY_CASE)
    assert {case for _, case in ALLOWED} >= {
        case for case in EVERY_CASE if case.convex and case.smoothing == 0
    }
