"""Every loss, by its definition and by its name, its rows, ranking and margins."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import ClassVar

import numba
import numpy as np
import pytest
from scipy.special import entr, expit, logsumexp, softmax, xlogy

from tests.contracts.loss_contract import HingeContract, LossContract
from tests.reference.envelopes import envelope_losses
from tests.reference.losses import sorted_loss
from tests.solvers.problems import EVERY_LOSS, LOSSES, MULTILABEL_LOSSES, M, loss_name, random_margins
from topline import (
    LDRKL,
    InvalidProblemError,
    LabelSets,
    Loss,
    MaxHinge,
    MultilabelHinge,
    MultilabelSoftmax,
    PolyhedralTopK,
    StructuredHinge,
    SumExponential,
    TopKHinge,
    UsunierHinge,
    WeightedTopKHinge,
    WeightedUsunierHinge,
    exponential,
    flat,
    ldam_margins,
    linear,
    logit_adjusted_margins,
    solve,
    tree_margins,
)
from topline.solvers.losses import LOSSES as REGISTRY
from topline.solvers.losses import (
    OneVsAll,
    Softmax,
    TopKEntropy,
    TopKOthersHinge,
    TruncatedTopKEntropy,
    loss_from_dict,
    make_loss,
    ranking,
)
from topline.solvers.losses.base import NO_MARGINS
from topline.solvers.losses.ranking import LANES, N_SUMS, SORT_FROM, RankRule, rank_rows
from topline.solvers.losses.rows import gradient_rows, nearest_rows
from topline.solvers.projections.columns import FLOAT_ROWS, INDEX_ROWS, ColumnProblem

EXTREMES = [
    TopKHinge(1),
    TopKHinge(5),
    UsunierHinge(5),
    WeightedTopKHinge([3.0, 1.0, 0.0]),
    TopKOthersHinge(1),
    TopKOthersHinge(4),
    TopKEntropy(1),
    TopKEntropy(4),
    TruncatedTopKEntropy(1),
    TruncatedTopKEntropy(4),
    LDRKL(0.01),
    LDRKL(10.0),
    PolyhedralTopK(1),
    PolyhedralTopK(4),
]
HINGES = [loss for loss in EVERY_LOSS + EXTREMES if loss.form(M).linear_conjugate]
OTHERS = [loss for loss in EVERY_LOSS + EXTREMES if not loss.form(M).linear_conjugate]


class OfLabelSets:
    """Five sets stand in the place of five classes: single labels, several, and all of them."""

    sets = LabelSets([0, 1, 3, 4, 7, 12], [0, 1, 2, 3, 0, 2, 4, *range(M)], M)

    def form(self, loss):
        return loss.form(self.m).with_label_sets(self.sets, loss.name)

    def truth(self, label):
        return self.sets.labels(label)


def of_each(*losses: Loss) -> pytest.MarkDecorator:
    """Give a test class each of some losses in the place of its fixture."""
    return pytest.mark.parametrize("loss", losses, ids=str)


@of_each(*HINGES)
class TestEveryHinge(HingeContract): ...


@of_each(MultilabelHinge(), OneVsAll("hinge"))
class TestEveryHingeOfLabelSets(OfLabelSets, HingeContract): ...


@of_each(MultilabelSoftmax(), OneVsAll("logistic"))
class TestEverySmoothLossOfLabelSets(OfLabelSets, LossContract): ...


@of_each(*OTHERS)
class TestEveryOtherLoss(LossContract): ...


def test_no_loss_is_left_out() -> None:
    """A new loss joins `problems.EVERY_LOSS`, or the list beside it, and with that every contract."""
    assert {loss.name for loss in EVERY_LOSS + MULTILABEL_LOSSES} == set(REGISTRY)


def test_losses_of_several_names_agree_where_they_are_the_same() -> None:
    """k = 1: the top-k entropies are the softmax loss, and the hinge over the others is the max hinge."""
    for row in np.random.default_rng(1).standard_normal((50, 5)):
        softmax = sorted_loss(Softmax(), row, 2)
        assert sorted_loss(TopKEntropy(1), row, 2) == pytest.approx(softmax, rel=1e-13)
        assert sorted_loss(TruncatedTopKEntropy(1), row, 2) == pytest.approx(softmax, rel=1e-13)
        assert sorted_loss(TopKOthersHinge(1), row, 2) == sorted_loss(MaxHinge(), row, 2)
        hinge, logistic = (sorted_loss(OneVsAll(base), row, 2) for base in ("hinge", "logistic"))
        z = np.where(np.arange(5) == 2, 1.0, -1.0) * row
        assert hinge == pytest.approx(np.maximum(0, 1 - z).sum())
        assert logistic == pytest.approx(np.log1p(np.exp(-z)).sum())


def test_a_flat_weighting_is_the_unweighted_loss() -> None:
    s = np.random.default_rng(0).standard_normal((50, 5))
    for row in s:
        assert sorted_loss(WeightedTopKHinge(flat(3)), row, 2) == sorted_loss(TopKHinge(3), row, 2)
        assert sorted_loss(WeightedUsunierHinge(flat(3)), row, 2) == sorted_loss(UsunierHinge(3), row, 2)


@pytest.mark.parametrize("weights", [flat, linear, exponential])
def test_rank_weights_sum_to_one_and_fall(weights) -> None:
    for k in (1, 2, 7):
        rho = weights(k)
        assert rho.shape == (k,)
        assert rho.sum() == pytest.approx(1.0, abs=1e-15)
        assert (np.diff(rho) <= 0).all()


def test_rank_weights_have_the_printed_values() -> None:
    np.testing.assert_allclose(linear(5), np.array([5, 4, 3, 2, 1]) / 15)
    np.testing.assert_allclose(
        exponential(3) * np.exp(-np.arange(1, 4) / 3).sum(), np.exp([-1 / 3, -2 / 3, -1])
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"name": "max_hinge"}, MaxHinge()),
        ({"name": "topk_hinge", "k": 2}, TopKHinge(2)),
        ({"name": "usunier_hinge", "k": 2}, UsunierHinge(2)),
        ({"name": "weighted_topk_hinge", "k": 3, "weights": "linear"}, WeightedTopKHinge(linear(3))),
        ({"name": "weighted_usunier_hinge", "weights": [2, 1]}, WeightedUsunierHinge([2.0, 1.0])),
        ({"name": "topk_others_hinge", "k": 2}, TopKOthersHinge(2)),
        ({"name": "one_vs_all_hinge"}, OneVsAll("hinge")),
        ({"name": "one_vs_all_logistic"}, OneVsAll("logistic")),
        ({"name": "multilabel_hinge"}, MultilabelHinge()),
        ({"name": "multilabel_softmax"}, MultilabelSoftmax()),
        ({"name": "softmax"}, Softmax()),
        ({"name": "ldr_kl"}, LDRKL(0.3)),
        ({"name": "ldr_kl", "temperature": 1}, LDRKL(1.0)),
        ({"name": "sum_exponential"}, SumExponential()),
        ({"name": "polyhedral_topk", "k": 3}, PolyhedralTopK(3)),
        ({"name": "topk_entropy", "k": 3}, TopKEntropy(3)),
        ({"name": "truncated_topk_entropy", "k": 3}, TruncatedTopKEntropy(3)),
        ({"name": "structured_hinge", "margins": random_margins()}, StructuredHinge(random_margins())),
        (
            {"name": "structured_hinge", "margins": random_margins(), "k": 2},
            StructuredHinge(random_margins(), 2),
        ),
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_losses_are_made_by_name(arguments, expected) -> None:
    assert make_loss(**arguments) == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopKHinge(0), "k of topk_hinge is 0"),
        (lambda: LDRKL(0.0), "temperature of ldr_kl is 0.0"),
        (lambda: UsunierHinge(2.5), "k of usunier_hinge is 2.5"),
        (lambda: TopKHinge(True), "k of topk_hinge is True"),
        (lambda: WeightedTopKHinge([1, 2]), "rho rises from 1 to 2 at rank 2"),
        (lambda: WeightedTopKHinge([1, -1]), "rho holds -1"),
        (lambda: WeightedUsunierHinge([np.nan]), "rho holds NaN"),
        (lambda: WeightedUsunierHinge([0.0]), "rho is all zero"),
        (lambda: WeightedTopKHinge([]), "give a sequence of at least one number"),
        (lambda: WeightedTopKHinge("steep"), "rho is 'steep'"),
        (lambda: StructuredHinge(np.ones((2, 2))), "the margin of class 0 towards itself is 1"),
        (lambda: StructuredHinge(np.zeros((2, 3))), r"margins have the shape \(2, 3\)"),
        (lambda: StructuredHinge([[0, -1], [1, 0]]), "margins hold -1"),
        (lambda: StructuredHinge([[0, np.inf], [1, 0]]), "margins hold NaN or infinity"),
        (lambda: StructuredHinge(random_margins(4)).form(5), "margins are for 4 classes but there are 5"),
        (lambda: TopKHinge(6).form(5), "there are only 5 classes; use k <= 5"),
        (lambda: MaxHinge().form(1), "there are 1 classes"),
        (lambda: Softmax().form(1), "there are 1 classes; softmax needs at least 2"),
        (lambda: OneVsAll("hinge").form(1), "there are 1 classes; one_vs_all_hinge needs at least 2"),
        (lambda: OneVsAll("square"), "the base of one-vs-all is 'square'; use hinge or logistic"),
        (lambda: TopKEntropy(5).form(5), "k of topk_entropy is 5 but each of 5 classes has 4 others"),
        (lambda: TruncatedTopKEntropy(6).form(5), "k of truncated_topk_entropy is 6 but .* use k <= 4"),
        (lambda: TopKOthersHinge(5).form(5), "k of topk_others_hinge is 5 but .* use k <= 4"),
        (lambda: TopKEntropy(0), "k of topk_entropy is 0"),
        (lambda: make_loss("softmax", k=3), "the loss softmax takes no k"),
        (lambda: make_loss("topk_entropy"), "the loss topk_entropy needs k"),
        (lambda: flat(0), "k is 0"),
        (lambda: linear(1.5), "k is 1.5"),
        (lambda: make_loss("hinge"), "there is no loss named 'hinge': did you mean 'max_hinge'\\?$"),
        (lambda: make_loss("cross_entropy"), "did you mean 'softmax'"),
        (lambda: make_loss("Top-K-Hinge"), "did you mean 'topk_hinge'"),
        (lambda: make_loss("ramp"), "there is no loss named 'ramp'; use one of max_hinge"),
        (lambda: make_loss("max_hinge", k=3), "takes no k"),
        (lambda: make_loss("topk_hinge"), "needs k"),
        (lambda: make_loss("weighted_topk_hinge", k=3), "needs weights"),
        (lambda: make_loss("weighted_topk_hinge", weights="steep", k=3), "no kind of weights named 'steep'"),
        (lambda: make_loss("weighted_topk_hinge", weights="linear"), "linear weights need k"),
        (lambda: make_loss("weighted_topk_hinge", weights=[1.0], k=3), "k is 3 but 1 weights"),
        (
            lambda: loss_from_dict({"name": "topk_hinge"}),
            r"described by \['name'\]; it takes|described by \[\]",
        ),
    ],
)
def test_what_makes_no_loss_is_refused(make, message) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        make()


@pytest.mark.parametrize("loss", [PolyhedralTopK, TopKHinge, TopKEntropy, WeightedTopKHinge])
def test_what_a_loss_is_missing_is_told_by_its_own_name(loss) -> None:
    with pytest.raises(TypeError, match=rf"^{loss.__name__}\.__init__"):
        loss()


def test_losses_are_told_apart() -> None:
    assert len({*LOSSES, *LOSSES}) == len(LOSSES)
    assert StructuredHinge(random_margins()) != StructuredHinge(2 * random_margins())
    assert StructuredHinge(random_margins(), 2) != StructuredHinge(random_margins())
    assert loss_name(TopKHinge(2)) == "topk_hinge"


@pytest.mark.parametrize("loss", EVERY_LOSS, ids=loss_name)
def test_the_functions_of_a_loss_have_one_type_each_however_often_they_are_passed(loss) -> None:
    """Making that type takes longer than a sweep over a thousand short rows."""
    form = loss.form(M)
    for function in (form.column, form.conjugate) if form.convex else ():
        assert numba.typeof(function) is numba.typeof(function)


def test_every_loss_goes_to_a_worker_that_is_a_process_of_its_own() -> None:
    """A problem is sent with what it has made of its loss: the compiled functions go by their names."""
    forms = [loss.form(M) for loss in EVERY_LOSS + MULTILABEL_LOSSES]
    script = "import pickle, sys; sys.stdout.buffer.write(pickle.dumps(pickle.load(sys.stdin.buffer)))"
    there = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(forms), capture_output=True, check=True
    )
    for form, back in zip(forms, pickle.loads(there.stdout), strict=True):
        for field in fields(form.family):
            here, from_there = getattr(form.family, field.name), getattr(back.family, field.name)
            assert here is from_there if callable(here) else type(here) is type(from_there), field.name


@pytest.mark.parametrize("loss", [loss for loss in EVERY_LOSS if loss.form(M).convex], ids=loss_name)
def test_no_bit_of_a_column_update_depends_on_where_its_arrays_lie(loss) -> None:
    """A compiled loop that both sums and writes may do one thing for arrays far apart, and another else."""
    form, m = loss.form(M), M
    rng = np.random.default_rng(3)
    cases = [(rng.normal(size=m), int(rng.integers(m)), float(rng.uniform(0.2, 3.0))) for _ in range(200)]
    index_work = np.empty((INDEX_ROWS, m + 1), dtype=np.int64)
    size = FLOAT_ROWS * (m + 1)
    near, far = [], []
    for apart, found in ((0, near), (1024, far)):
        buffer = np.zeros(2 * size + 2048)
        work = buffer[:size].reshape(FLOAT_ROWS, m + 1)
        q, alpha = buffer[size : size + m], buffer[size + m + apart : size + 2 * m + apart]
        for scores, y, c in cases:
            q[:] = scores
            form.column(ColumnProblem(q, y, c, c, form.rho, form.table, alpha, work, index_work, False))
            found.append(alpha.copy())
    np.testing.assert_array_equal(near, far)


#: Digits of either precision that a row keeps.
ROUNDING = {np.float32: 2e-6, np.float64: 1e-14}


def labelled(name, n, m):
    """Return the loss and the numbers of the own classes of rows."""
    random = np.random.default_rng(m)
    form = (Softmax() if name == "softmax" else OneVsAll("logistic")).form(m)
    if name == "sets":
        found, y = LabelSets.from_indicator(random.random((n, m)) < 0.4)
        return form.with_label_sets(found, "one_vs_all_logistic"), y.astype(np.int32)
    return form, random.integers(0, m, n).astype(np.int32)


def exact_rows(name, form, scores, y):
    """Return u (n, m), the losses and the conjugates of rows."""
    if name != "softmax":
        z = np.where(form.own_rows(y), 1.0, -1.0)
        t = -z * scores
        a = expit(t)
        return z * a, np.logaddexp(0.0, t).sum(axis=1), (entr(a) + entr(expit(-t))).sum(axis=1)
    own = np.arange(len(y)), y
    p, others = softmax(scores, axis=1), scores.copy()
    others[own] = -np.inf
    u = -p
    u[own] = 0.0
    u[own] = -u.sum(axis=1)
    loss = np.logaddexp(0.0, logsumexp(others - scores[own][:, None], axis=1))
    return u, loss, -xlogy(p, p).sum(axis=1)


@pytest.mark.parametrize("name", ["softmax", "single", "sets"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [2, 10, 41, 600])
@pytest.mark.parametrize("n", [1, 127, 300])
def test_rows_are_those_of_the_definition(name, dtype, m, n) -> None:
    random = np.random.default_rng(m + n)
    scores = (random.standard_normal((n, m)) * random.choice([0.1, 3.0, 30.0], (n, 1))).astype(dtype)
    form, y = labelled(name, n, m)
    weights = random.uniform(0.5, 2.0, n)
    U, losses, sums = scores.copy(), np.empty(n), np.zeros(ranking.N_SUMS)
    gradient_rows(form, U, y, weights, (0.0, 0.0), U, sums, losses)
    u, loss, conjugate = exact_rows(name, form, scores.astype(np.float64), y)
    rounding = ROUNDING[dtype]
    np.testing.assert_allclose(U, u, rtol=20 * rounding, atol=1e-37)
    np.testing.assert_allclose(losses, loss, rtol=20 * rounding, atol=1e-37)
    totals = {ranking.LOSS: loss, ranking.B_U: conjugate, ranking.U_SQ: (u * u).sum(axis=1)}
    for place, values in totals.items():
        assert sums[place] == pytest.approx(weights @ values, rel=(1 if name == "softmax" else 10) * rounding)
    assert sums[ranking.ACTIVE] == U.any(axis=1).sum()


@pytest.mark.parametrize("name", ["softmax", "single"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [3, 41])
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_no_numbers_has_no_loss_and_harms_no_other(name, dtype, m, place, bad) -> None:
    scores = np.random.default_rng(0).standard_normal((5, m)).astype(dtype)
    scores[3, place] = bad
    form, _ = labelled(name, 5, m)
    y, weights = np.zeros(5, dtype=np.int32), np.ones(5)
    U, losses, sums = scores.copy(), np.empty(5), np.zeros(ranking.N_SUMS)
    gradient_rows(form, scores, y, weights, (0.0, 0.0), U, sums, losses)
    good = [0, 1, 2, 4]
    alone, found = np.empty((4, m), dtype=dtype), np.empty(4)
    rest = np.zeros(ranking.N_SUMS)
    gradient_rows(form, scores[good], y[good], weights[good], (0.0, 0.0), alone, rest, found)
    np.testing.assert_array_equal(U[good], alone)
    np.testing.assert_array_equal(losses[good], found)
    assert np.isnan(losses[3])
    assert not U[3].any()
    assert np.isnan(sums[ranking.LOSS])


def ranks(scores, y, k, margins=None):
    rho = np.linspace(2.0, 1.0, k)
    ranked = np.zeros((len(y), k), dtype=np.int32)
    counts = np.zeros(len(y), dtype=np.int32)
    sums = np.zeros(N_SUMS)
    margins = NO_MARGINS if margins is None else margins
    rule = RankRule(rho, False, True, 1.0, margins)
    rank_rows(scores.copy(), y, np.ones(len(y)), rule, ranked, counts, sums)
    return ranked, counts, sums


def sorted_ranks(scores, y, k, margins=None):
    rows = np.arange(len(y))
    a = scores.astype(np.float64)
    if margins is None:
        a[rows, y] -= 1.0
    else:
        a += margins[y]
    return np.argsort(-a, axis=1, kind="stable")[:, :k]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("m", "k"),
    [
        (2, 1),
        (5, 5),
        (31, 3),
        (32, 1),
        (33, 5),
        (100, 1),
        (100, LANES),
        (100, LANES + 1),
        (100, SORT_FROM),
        (77, 77),
    ],
)
def test_the_largest_in_order(m, k, dtype) -> None:
    random = np.random.default_rng(m * k)
    y = random.integers(0, m, 300).astype(np.int32)
    for scores in (random.standard_normal((300, m)), random.integers(-2, 3, (300, m)), np.zeros((300, m))):
        values = scores.astype(dtype)
        ranked, counts, _ = ranks(values, y, k)
        active = counts > 0
        assert active.any()
        np.testing.assert_array_equal(ranked[active], sorted_ranks(values, y, k)[active])


def test_class_margins_enter_the_order() -> None:
    random = np.random.default_rng(0)
    m, k = 40, 4
    margins = random.integers(0, 4, (m, m)).astype(np.float64)
    np.fill_diagonal(margins, 0.0)
    y = random.integers(0, m, 200).astype(np.int32)
    scores = random.integers(-2, 3, (200, m)).astype(np.float32)
    ranked, counts, _ = ranks(scores, y, k, margins)
    active = counts > 0
    np.testing.assert_array_equal(ranked[active], sorted_ranks(scores, y, k, margins)[active])


@pytest.mark.parametrize("m", [8, 100])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_that_are_no_numbers_show_in_the_loss(m, bad) -> None:
    scores = np.full((3, m), bad, dtype=np.float32)
    _, _, sums = ranks(scores, np.zeros(3, dtype=np.int32), 3)
    assert not np.isfinite(sums[0])


COUNTS = [800, 90, 90, 4, 0]


def test_margins_of_class_sizes_are_those_of_their_formulas() -> None:
    sizes = np.array([800.0, 90.0, 90.0, 4.0, 1.0])
    adjusted, ldam = logit_adjusted_margins(COUNTS, tau=0.3), ldam_margins(COUNTS)
    for y in range(5):
        for j in range(5):
            if j != y:
                assert adjusted[y, j] == pytest.approx(max(0.0, 1.0 + 0.3 * np.log(sizes[j] / sizes[y])))
                assert ldam[y, j] == pytest.approx((800.0 / sizes[y]) ** 0.25)
    assert np.diag(adjusted).tolist() == np.diag(ldam).tolist() == [0.0] * 5
    usual = 1.0 - np.eye(5)
    assert np.array_equal(logit_adjusted_margins(COUNTS, tau=0.0), usual)
    assert np.array_equal(ldam_margins(COUNTS, power=0.0), usual)
    assert np.array_equal(ldam_margins([7] * 5), usual)


def ways_up(name: str, above: dict[str, list[str]]) -> Iterator[list[str]]:
    yield [name]
    for parent in above.get(name, ()):
        for way in ways_up(parent, above):
            yield [name, *way]


def test_tree_margins_are_the_heights_of_lowest_common_ancestors() -> None:
    """Against all ways up: nodes below a root, some with two parents, classes among inner nodes too."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        nodes = [f"n{i}" for i in range(16)]
        pairs = [
            (nodes[i], nodes[j])
            for i in range(1, 16)
            for j in rng.choice(i, min(i, 1 + (i % 3 == 0)), replace=False)
        ]
        above: dict[str, list[str]] = {}
        for child, parent in pairs:
            above.setdefault(child, []).append(parent)
        classes = [str(name) for name in rng.choice(nodes, 6, replace=False)]
        height: dict[str, int] = {}
        for name in classes:
            for way in ways_up(name, above):
                for steps, node in enumerate(way):
                    height[node] = max(height.get(node, 0), steps)
        expected = np.zeros((6, 6))
        for a, b in np.ndindex(6, 6):
            ancestors = [{node for way in ways_up(classes[c], above) for node in way} for c in (a, b)]
            if a != b:
                expected[a, b] = min(height[node] for node in ancestors[0] & ancestors[1])
        order = rng.permutation(len(pairs))
        edges = [pairs[i] for i in order]
        found = tree_margins(classes, edges, least=0.0)
        np.testing.assert_allclose(found, expected / expected.max())
        np.testing.assert_allclose(tree_margins(classes, edges), 0.5 * (1.0 - np.eye(6)) + 0.5 * found)


def test_classes_of_two_trees_meet_above_both() -> None:
    found = tree_margins(["a", "b", "c"], [("a", "x"), ("b", "x"), ("c", "y")], least=0.0)
    np.testing.assert_allclose(found, [[0, 0.5, 1], [0.5, 0, 1], [1, 1, 0]])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: logit_adjusted_margins([1, -1]), "training rows of each of at least 2"),
        (lambda: logit_adjusted_margins([5]), "at least 2 classes"),
        (lambda: ldam_margins("many"), "counts are 'many'"),
        (lambda: logit_adjusted_margins([1, 2], tau=-1), "tau of logit-adjusted margins is -1"),
        (lambda: ldam_margins([1, 2], power=float("nan")), "power of LDAM margins is nan"),
        (lambda: tree_margins(["a", "b"], [("a", "x")]), r"1 classes are not in the tree \(b\)"),
        (lambda: tree_margins(["a", "b"], [("a", "b"), ("b", "a")]), "a circle above"),
        (lambda: tree_margins(["a", "b"], [("a", "x"), ("b", "x")], least=2), "least of tree margins is 2"),
    ],
)
def test_what_makes_no_margins_is_refused(make, said) -> None:
    with pytest.raises(InvalidProblemError, match=said):
        make()


def test_with_the_usual_margins_it_is_the_top_k_hinge() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(120, 6)), rng.integers(5, size=120)
    usual, found = (
        solve(X, y, loss=loss, lam=0.01, tol=1e-8, max_passes=5000)
        for loss in (TopKHinge(3), StructuredHinge(1.0 - np.eye(5), k=3))
    )
    # Both primals lie within their gaps of the one optimum.
    assert found.primal == pytest.approx(usual.primal, rel=3e-8)


GUIDE = Path(__file__).resolve().parents[3] / "solvers" / "README.md"


@pytest.fixture(scope="module")
def guide():
    """Run the example of the guide as printed, on a few rows; gives what it defines."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (example,) = [block for block in blocks if "class SquaredTopKHinge" in block]
    random = np.random.default_rng(0)
    y = random.integers(0, 5, 60)
    X = random.standard_normal((5, 4))[y] + random.standard_normal((60, 4))
    names = {"X": X, "y": y, "n": 60, "np": np, "solve": solve, "ClassVar": ClassVar, "__name__": "guide"}
    exec(compile(example, str(GUIDE), "exec"), names)
    return names


def hinge(scores, y, k):
    """Half the square of the mean of the k largest violations of the others, by a full sort."""
    rows = np.arange(len(y))
    a = 1.0 + scores - scores[rows, y][:, None]
    a[rows, y] = -np.inf
    return 0.5 * np.maximum(np.sort(a, axis=1)[:, ::-1][:, :k].mean(axis=1), 0.0) ** 2


@pytest.mark.parametrize("k", [1, 2, 4])
def test_it_is_half_the_square_of_the_hinge(guide, k) -> None:
    random = np.random.default_rng(k)
    scores, y = 2.0 * random.standard_normal((60, 6)), random.integers(0, 6, 60)
    form = guide["SquaredTopKHinge"](k).form(6)
    np.testing.assert_allclose(envelope_losses(form, scores, y, 0.0), hinge(scores, y, k), atol=1e-13)
    # The envelope lies below the loss, by at most gamma/2 |u|^2 where u is the slope there.
    smoothed = envelope_losses(form, scores, y, 1e-6)
    assert (smoothed <= hinge(scores, y, k) + 1e-13).all()
    np.testing.assert_allclose(smoothed, hinge(scores, y, k), atol=1e-4)


def test_it_trains_to_a_certificate_that_numpy_confirms(guide) -> None:
    """P from its definition, D from what the dual rows of any feasible point give."""
    result = guide["result"]
    X, y, n = guide["X"], guide["y"], guide["n"]
    assert result.relative_gap <= 1e-3
    primal = 0.5 / n * np.sum(result.W**2) + hinge(X @ result.W, y, 3).mean()
    assert result.primal == pytest.approx(primal, rel=1e-6)
    random = np.random.default_rng(1)
    W = result.W + 0.1 * random.standard_normal((20, *result.W.shape))
    others = [0.5 / n * np.sum(w**2) + hinge(X @ w, y, 3).mean() for w in W]
    assert result.dual <= min(others)


def test_points_of_its_domain_are_their_own_nearest(guide) -> None:
    form = guide["SquaredTopKHinge"](2).form(4)
    A = np.array([[-1.5, -1.5, 3.0, 0.0], [0.0, 0.0, 0.0, 0.0], [-0.2, -0.1, 0.4, -0.1]])
    np.testing.assert_allclose(nearest_rows(form, A, np.array([2, 1, 2])), A, atol=1e-9)
