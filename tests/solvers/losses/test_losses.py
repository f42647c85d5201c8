"""Every loss, by its definition and by its name."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import fields

import numba
import numpy as np
import pytest

from tests.contracts.loss_contract import HingeContract, LossContract
from tests.reference.losses import sorted_loss
from tests.solvers.problems import EVERY_LOSS, LOSSES, MULTILABEL_LOSSES, M, loss_name, random_margins
from topline import (
    InvalidProblemError,
    LabelSets,
    Loss,
    MaxHinge,
    MultilabelHinge,
    MultilabelSoftmax,
    StructuredHinge,
    TopKHinge,
    UsunierHinge,
    WeightedTopKHinge,
    WeightedUsunierHinge,
    exponential,
    flat,
    linear,
)
from topline.solvers.losses import (
    LOSSES as REGISTRY,
)
from topline.solvers.losses import (
    OneVsAll,
    Softmax,
    TopKEntropy,
    TopKOthersHinge,
    TruncatedTopKEntropy,
    loss_from_dict,
    make_loss,
)
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
]
HINGES = [loss for loss in EVERY_LOSS + EXTREMES if not loss.form(M).smooth]
SMOOTH = [loss for loss in EVERY_LOSS + EXTREMES if loss.form(M).smooth]


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


@of_each(*SMOOTH)
class TestEverySmoothLoss(LossContract): ...


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
        (lambda: make_loss("hinge"), "there is no loss named 'hinge'; use one of max_hinge"),
        (lambda: make_loss("max_hinge", k=3), "takes no k"),
        (lambda: make_loss("topk_hinge"), "needs k"),
        (lambda: make_loss("weighted_topk_hinge", k=3), "needs weights"),
        (lambda: make_loss("weighted_topk_hinge", weights="steep", k=3), "no weights named 'steep'"),
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
