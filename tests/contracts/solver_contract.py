"""What every method must do with every loss, smoothing and weighting that it is for, and with all others.

Combinations are made from the registries: a new loss is a line in `tests.solvers.problems`, and a new method
for every convex loss is no line at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array, csr_matrix

from tests.reference import losses as reference
from tests.reference.smooth import is_smooth
from tests.reference.training_qp import optimum
from tests.solvers.problems import EVERY_LOSS, MULTILABEL_LOSSES, M, examples, several_labels
from topline import (
    InvalidProblemError,
    MaxHinge,
    NonFiniteError,
    Softmax,
    Status,
    UnsupportedCombinationError,
    solve,
)
from topline.solvers.losses import (
    MultilabelHinge,
    OneVsAll,
    PolyhedralTopK,
    SumExponential,
    TruncatedTopKEntropy,
)
from topline.solvers.methods import METHODS

X, Y = examples(n=20, d=3)
LAM = 2.0 / len(Y)
#: The same examples with several labels each, and the labels themselves.
SETS, CODES = several_labels(Y)
LABELS = [SETS.labels(code) for code in CODES]
#: Weights far apart, one of them zero.
WEIGHTS = np.random.default_rng(0).uniform(0.2, 2.0, len(Y)) * (np.arange(len(Y)) != 4)


@dataclass(frozen=True)
class Case:
    """One problem on X and Y, or on the label sets."""

    loss: Any
    smoothing: float
    kind: str
    weighted: bool
    several: bool = False

    def __str__(self) -> str:
        smoothing = f"-{self.kind}" if self.smoothing else ""
        several = "-several" if self.several else ""
        return f"{self.loss.name}{several}{smoothing}{'-weighted' if self.weighted else ''}"

    @property
    def weights(self):
        return WEIGHTS if self.weighted else None

    @property
    def labels(self):
        """What the reference takes for y: classes, or arrays of labels."""
        return LABELS if self.several else Y

    @property
    def examples(self):
        """What `solve` takes."""
        return {"y": CODES, "label_sets": SETS} if self.several else {"y": Y, "m": M}

    @property
    def ranked(self) -> bool:
        return not (
            is_smooth(self.loss) or isinstance(self.loss, OneVsAll | MultilabelHinge | PolyhedralTopK)
        )

    @property
    def convex(self) -> bool:
        return not isinstance(self.loss, TruncatedTopKEntropy)

    @property
    def smooth(self) -> bool:
        return is_smooth(self.loss) or self.smoothing > 0


CASES = [
    Case(loss, smoothing, kind, weighted)
    for loss, (smoothing, kind), weighted in product(
        EVERY_LOSS, [(0.0, "moreau"), (0.5, "moreau"), (0.5, "others")], [False, True]
    )
] + [
    Case(loss, smoothing, kind, weighted, several=True)
    for loss, (smoothing, kind, weighted) in product(
        [*MULTILABEL_LOSSES, OneVsAll("hinge"), OneVsAll("logistic")],
        [(0.0, "moreau", False), (0.5, "moreau", True), (0.5, "others", False)],
    )
]
#: What methods are for that are not for every convex loss.
FITS = {
    "auto": lambda _: True,
    "lbfgs": lambda case: case.smooth,
    "fw_away_columns": lambda case: case.ranked,
    "fw_pairwise_columns": lambda case: case.ranked,
    "fw_open_loop": lambda case: case.convex and not isinstance(case.loss, SumExponential),
    "projected_gradient": lambda case: case.convex and not isinstance(case.loss, SumExponential),
}
#: Relative gap and passes of methods that are held to less than GAPS in PASSES.  The gap of these falls like
#: 1/t: to 1e-4 they take tens of thousands of passes, and all cases together minutes.
SLOW = dict.fromkeys(("fw", "fw_open_loop", "projected_gradient"), (1e-3, 10_000))
#: Methods whose dual value never falls: each step is the best point of its segment.
CLIMBING = {name for name in METHODS if name in ("dual_ascent", "sdca", "fw") or name.startswith("fw_")} - {
    "fw_open_loop"
}
#: Times LAM at which they are held to 1e-4 as well.
FIRM = 40.0
#: Relative gap of smooth problems, and of the others.
GAPS = {True: 1e-8, False: 1e-4}
PASSES = 10_000


def words_of_refusal(method: str, case: Case) -> tuple[str, ...]:
    """Give what the refusal must name; nothing where the combination is allowed."""
    if case.smoothing and is_smooth(case.loss):
        return (case.loss.name, "smooth")
    if case.kind == "others" and not case.ranked:
        return (case.loss.name, "others")
    fits = FITS.get(method, lambda case: case.convex)
    return () if fits(case) else (case.loss.name, method)


COMBINATIONS = list(product(METHODS, CASES))
ALLOWED = [(method, case) for method, case in COMBINATIONS if not words_of_refusal(method, case)]
REFUSED = [(method, case) for method, case in COMBINATIONS if words_of_refusal(method, case)]


def name_of(value: Any) -> str:
    """Name a combination."""
    return f"{value[0]}-{value[1]}"


@cache
def solved(method: str, case: Case):
    """Solve to the gap that the method is held to."""
    tol, passes = SLOW.get(method, (GAPS[case.smooth], PASSES))
    return run(method, case, X, tol=tol, max_passes=passes)


def run(method: str, case: Case, features: Any, lam: float = LAM, **options: Any):
    """Solve one case, with A where the method knows it."""
    return solve(
        features, loss=case.loss, lam=lam, smoothing=case.smoothing, method=method, **case.examples,
        sample_weight=case.weights, smoothing_kind=case.kind,
        keep_duals=case.convex and not METHODS[method].dual_free, **options,
    )  # fmt: skip


@cache
def best_of(case: Case) -> float:
    """Give the optimum of the general solver."""
    return optimum(X, case.labels, case.loss, LAM, case.smoothing, M, case.kind, case.weights)


def primal_of(case: Case, features: Any, W: Any) -> float:
    """Give P(W) by the definitions."""
    return reference.primal(features, case.labels, case.loss, LAM, case.smoothing, W, case.kind, case.weights)


class SolverContract:
    """Inherit it and parametrise `combination` over ALLOWED."""

    def test_primal_and_dual_are_those_of_the_returned_W_and_A(self, combination) -> None:
        method, case = combination
        self.check_values(case, X, solved(method, case), 1e-9)

    def test_float32_features_change_no_value_by_more_than_their_duals(self, combination) -> None:
        """P and D are sums in float64; A is float32, and so is w_i times the rows that the blocks hold."""
        method, case = combination
        features = X.astype(np.float32)
        result = run(method, case, features, tol=1e-5, max_passes=40)
        self.check_values(case, features, result, 1e-7 if case.weighted else 1e-9)

    def check_values(self, case: Case, features: Any, result: Any, rounding: float) -> None:
        assert result.primal == pytest.approx(primal_of(case, features, result.W), rel=rounding)
        if not case.convex:
            return
        assert result.gap == pytest.approx(result.primal - result.dual, abs=1e-15)
        assert result.gap_kind == "true"
        assert result.gap <= result.smoothed_gap + rounding * result.primal
        W = result.W if result.W_dual is None else result.W_dual
        if result.A is None:
            # Without A its linear term is taken on trust here, and checked by the optimum below.
            expected = result.conjugate_mean - 0.5 * LAM * np.sum(W**2)
        else:
            A = np.asarray(result.A, dtype=np.float64)
            expected = reference.dual(
                features, case.labels, case.loss, LAM, case.smoothing, A, case.kind, case.weights
            )
            np.testing.assert_allclose(W, reference.weights_of(features, LAM, A), rtol=0, atol=100 * rounding)
            self.check_feasible(case, A)
        assert result.dual == pytest.approx(expected, rel=rounding, abs=rounding * result.primal)

    def check_feasible(self, case: Case, A: Any) -> None:
        """Every row is w_i times a point of the domain, to the precision that A is kept in."""
        weights = np.ones(len(Y)) if case.weights is None else case.weights
        for weight, row, label in zip(weights, A, case.labels, strict=True):
            if weight > 0:
                assert reference.infeasibility(case.loss, row / weight, label) <= 1e-6
            else:
                np.testing.assert_array_equal(row, 0.0)

    def test_the_optimum_of_a_general_solver_lies_between(self, combination) -> None:
        method, case = combination
        if not case.convex:
            return
        result, best = solved(method, case), best_of(case)
        rounding = 1e-9 * (1.0 + best)  # what the interior point method leaves open
        assert result.dual - rounding <= best <= result.primal + rounding

    def test_the_gap_closes(self, combination) -> None:
        method, case = combination
        result = solved(method, case)
        assert result.status is Status.SOLVED
        if method in CLIMBING:
            duals = np.array([record.dual for record in result.history])
            assert (np.diff(duals) >= -1e-12 * duals.max()).all()
        if case.convex:
            assert result.relative_gap <= SLOW.get(method, (GAPS[case.smooth], PASSES))[0]
            assert result.gap >= -1e-12 * result.primal
            return
        # Not convex: no bound is claimed, and the gradient is that of the definition.
        assert result.gap_kind == "none"
        assert np.isnan([result.dual, result.gap, result.relative_gap]).all()
        sizes = [np.linalg.norm(self.gradient(case, W)) for W in (result.W, np.zeros_like(result.W))]
        assert result.stationarity == pytest.approx(sizes[0] / sizes[1], rel=1e-4)

    def gradient(self, case: Case, W: Any) -> Any:
        """Give grad P(W) by the definitions."""
        U = np.array(
            [reference.gradient(case.loss, s, label) for s, label in zip(X @ W, case.labels, strict=True)]
        )
        weights = np.ones(len(Y)) if case.weights is None else case.weights
        return LAM * W - X.T @ (weights[:, None] * U) / len(Y)


class EveryMethodContract:
    """Inherit it and parametrise `method` over METHODS: what holds whatever the loss."""

    def solved(self, method: str, features: Any, lam: float = LAM, **options: Any):
        loss = Softmax() if method == "lbfgs" else MaxHinge()
        given = {"loss": loss, "max_passes": 60, **options}
        return solve(features, Y, lam=lam, method=method, m=M, **given)

    def test_features_of_zeros_are_solved_at_zero(self, method) -> None:
        """Also where "auto" expects no visits, of rows that are fewer than their columns."""
        smooth = method in ("auto", "lbfgs")
        wide = np.zeros((len(Y), 2 * len(Y)) if smooth else X.shape)
        result = self.solved(method, wide, loss=Softmax() if smooth else MaxHinge())
        assert result.status is Status.SOLVED
        assert result.primal == pytest.approx(np.log(M) if smooth else 1.0, rel=1e-12)
        assert result.dual == pytest.approx(result.primal, rel=1e-12)
        as_usual = self.solved(method, np.zeros_like(X))
        assert as_usual.status is Status.SOLVED
        assert as_usual.primal == pytest.approx(np.log(M) if method == "lbfgs" else 1.0, rel=1e-12)

    def test_features_that_overflow_are_said(self, method) -> None:
        """Or they moved nothing, and what is said is true of W = 0."""
        try:
            result = self.solved(method, 1e200 * X, 1.0)
        except NonFiniteError:
            return
        if result.status is not Status.NONFINITE:
            assert not result.W.any()
            assert result.dual <= result.primal == pytest.approx(1.0)

    def test_sparse_features_are_those_of_an_array(self, method) -> None:
        """To the same bounds: sums are in another order, and forecasts of `auto` go by the entries."""
        thin = np.where(np.random.default_rng(1).random(X.shape) < 0.5, X, 0.0)
        dense = self.solved(method, thin, tol=1e-2, max_passes=3000)
        for kind in (csr_matrix, csr_array):
            found = self.solved(method, kind(thin), tol=1e-2, max_passes=3000)
            assert found.status is dense.status is Status.SOLVED
            assert found.dual <= dense.primal
            assert dense.dual <= found.primal
            np.testing.assert_allclose(found.decision_function(kind(thin)), thin @ found.W, atol=1e-9)


class SlowMethodContract:
    """Inherit it and parametrise `combination` over those of ALLOWED whose method is in SLOW."""

    def test_a_slow_method_closes_the_gap_as_far_where_the_problem_is_easier(self, combination) -> None:
        """The gap falls like 1/(lam t): at FIRM times lam these methods come to 1e-4 too."""
        method, case = combination
        result = run(method, case, X, lam=FIRM * LAM, tol=1e-4, max_passes=PASSES)
        assert result.status is Status.SOLVED
        assert result.relative_gap <= 1e-4


class RefusalContract:
    """Inherit it and parametrise `combination` over REFUSED."""

    def test_it_is_refused_by_name(self, combination) -> None:
        method, case = combination
        with pytest.raises((UnsupportedCombinationError, InvalidProblemError)) as refusal:
            run(method, case, X, max_passes=2)
        for word in words_of_refusal(method, case):
            assert word in str(refusal.value)
        assert "\n" not in str(refusal.value)
