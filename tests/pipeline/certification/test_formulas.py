"""The certificate's own losses, domains and envelopes against brute force."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from tests.reference import losses as reference
from tests.reference.qp import least_on_simplex
from tests.solvers import problems
from topline.pipeline.certification.formulas import RankedLoss, certified_loss, envelope, penalties
from topline.pipeline.errors import InputError
from topline.solvers.losses import LOSSES as SOLVER_LOSSES
from topline.solvers.names import LOSS_RULES

M = 4
RHO = [0.5, 0.3, 0.1]
LOSSES: list[dict[str, Any]] = [
    {"name": "max_hinge"},
    {"name": "structured_hinge", "margins": [[0, 1, 2, 0.5], [1, 0, 1, 3], [0.2, 1, 0, 1], [2, 2, 1, 0]]},
    {"name": "topk_hinge", "k": 2},
    {"name": "topk_hinge", "k": 4},
    {"name": "usunier_hinge", "k": 3},
    {"name": "weighted_topk_hinge", "rho": RHO},
    {"name": "weighted_usunier_hinge", "rho": RHO},
    {"name": "topk_others_hinge", "k": 1},
    {"name": "topk_others_hinge", "k": 2},
    {"name": "topk_others_hinge", "k": 3},
]
IDS = ["-".join(str(v) for key, v in loss.items() if key != "margins") for loss in LOSSES]


@pytest.mark.parametrize("name", LOSS_RULES)
def test_the_rules_of_losses_are_those_of_the_solvers(name: str) -> None:
    """Names, k, rank weights, margins and what the sort leaves out, which the certificate knows by itself."""
    constructor, parameter = SOLVER_LOSSES[name]
    margins = np.array(LOSSES[1]["margins"])
    for k in range(1, M) if parameter == "k" else (2,):
        given = {None: (), "k": (k,), "rho": (RHO,), "margins": (margins,)}[parameter]
        loss = constructor(*given)
        form, record = loss.form(M), loss.to_dict()
        if not form.convex:
            with pytest.raises(InputError, match="not convex"):
                certified_loss(record, M)
            continue
        found = certified_loss(record, M)
        assert isinstance(found, RankedLoss) == form.sparse_vertices
        if isinstance(found, RankedLoss):
            assert found.own_in_sort == (not LOSS_RULES[name].of_others)
            np.testing.assert_allclose(found.rho[found.rho > 0], form.rho)
            ones, y = 1 - np.eye(M), np.arange(M)
            margins_of_labels = found.shifted(np.zeros((M, M)), y)
            np.testing.assert_allclose(margins_of_labels, ones if form.margins is None else form.margins)
        elif parameter == "k":
            assert found.k == k


def test_an_unknown_loss_is_refused() -> None:
    with pytest.raises(InputError, match="'hinge_of_another_kind' is not known"):
        certified_loss({"name": "hinge_of_another_kind"}, M)


def vertices(loss: RankedLoss) -> np.ndarray[Any, Any]:
    """All x over the m - 1 others: rho in every order, and on the Usunier side any part of it."""
    found = {(0.0,) * (M - 1)}
    for order in itertools.permutations(range(M)):
        placed = loss.rho[list(order)]
        if not loss.own_in_sort and placed[0] > 0:
            continue
        for kept in itertools.product((0, 1), repeat=M) if loss.hinge_per_rank else [(1,) * M]:
            found.add(tuple((placed * kept)[1:]))
    return np.array(sorted(found))


def as_alpha(x: np.ndarray[Any, Any], y: int) -> np.ndarray[Any, Any]:
    return np.insert(-x, y, x.sum())


@pytest.mark.parametrize("record", LOSSES, ids=IDS)
def test_the_loss_is_the_maximum_over_the_vertices(record: dict[str, Any]) -> None:
    loss = RankedLoss.from_record(record, M)
    rng = np.random.default_rng(1)
    scores, y = rng.normal(size=(200, M)), rng.integers(0, M, size=200)
    corners = vertices(loss)
    for i in range(len(y)):
        b = np.delete(loss.shifted(scores[i : i + 1], y[i : i + 1])[0], y[i])
        assert loss.values(scores[i : i + 1], y[i : i + 1])[0] == pytest.approx(
            (corners @ b).max(), abs=1e-12
        )


@pytest.mark.parametrize("record", LOSSES, ids=IDS)
def test_the_domain_is_the_hull_of_the_vertices(record: dict[str, Any]) -> None:
    """Points of the hull have no violation; random points have one exactly if an LP finds them outside."""
    loss = RankedLoss.from_record(record, M)
    rng = np.random.default_rng(2)
    corners = vertices(loss)
    inside = rng.dirichlet(np.full(len(corners), 0.3), size=50) @ corners
    for x in inside:
        y = int(rng.integers(M))
        assert loss.violations(as_alpha(x, y)[None], np.array([y]))[0] <= 1e-12
    outcomes = set()
    for x in np.abs(rng.normal(size=(80, M - 1))) * 0.35:
        equal = np.vstack([corners.T, np.ones(len(corners))])
        feasible = linprog(np.zeros(len(corners)), A_eq=equal, b_eq=[*x, 1.0]).status == 0
        assert (loss.violations(as_alpha(x, 0)[None], np.array([0]))[0] <= 1e-9) == feasible
        outcomes.add(feasible)
    assert False in outcomes


@pytest.mark.parametrize("record", LOSSES, ids=IDS)
@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("gamma", [0.05, 1.0, 20.0])
@pytest.mark.sampled(6)
def test_the_envelope_is_the_penalised_maximum(record: dict[str, Any], gamma: float, share: float) -> None:
    """Against a general solver over the weights of the vertices; share 0 smooths the others alone."""
    loss = RankedLoss.from_record(record, M)
    rng = np.random.default_rng(3)
    scores, y = rng.normal(size=(12, M)), rng.integers(0, M, size=12)
    corners = vertices(loss)
    values = envelope(loss, scores, y, gamma, share * gamma)
    rows = loss.gradient(scores, y, gamma, share * gamma)
    assert loss.violations(rows, y).max() <= 1e-12
    for i in range(len(y)):
        b = np.delete(loss.shifted(scores[i : i + 1], y[i : i + 1])[0], y[i])

        def negative(w: np.ndarray[Any, Any], b: np.ndarray[Any, Any] = b) -> float:
            x = w @ corners
            return float(0.5 * gamma * (x @ x + share * x.sum() ** 2) - b @ x)

        weights, least = least_on_simplex(negative, len(corners))
        # Any feasible point bounds the maximum from below.
        assert values[i] >= -negative(weights) - 1e-9
        assert values[i] == pytest.approx(-least, abs=2e-5)


CERTIFIED = [loss for loss in problems.EVERY_LOSS if loss.form(problems.M).convex]
SMOOTHED = [
    (loss, gamma, kind)
    for loss in CERTIFIED
    for gamma, kind in ((0.0, "moreau"), (0.5, "moreau"), (0.5, "others"))
    if gamma == 0.0 or loss.form(problems.M).linear_conjugate
    if kind == "moreau" or loss.form(problems.M).sparse_vertices
]


@pytest.mark.parametrize(("loss", "gamma", "kind"), SMOOTHED, ids=str)
def test_values_rows_and_conjugates_are_those_of_the_reference(loss: Any, gamma: float, kind: str) -> None:
    """Two implementations that share nothing, at scores of several sizes and with ties."""
    rng = np.random.default_rng(4)
    scores = rng.normal(size=(60, problems.M)) * np.repeat([0.1, 1.0, 10.0], 20)[:, None]
    scores[::3] = np.round(scores[::3])
    y = rng.integers(0, problems.M, size=60)
    found = certified_loss(loss.to_dict(), problems.M)
    own = 0.0 if kind == "others" else gamma
    rows = found.gradient(scores, y, gamma, own)
    values, conjugates = envelope(found, scores, y, gamma, own), found.conjugate(rows, y)
    outside, squares = found.violations(rows, y), penalties(rows, y, gamma, own)
    for i, label in enumerate(y):
        if gamma:
            expected = reference.envelope(loss, scores[i], label, gamma, kind)
            np.testing.assert_allclose(
                rows[i], reference.gradient(loss, scores[i], label, gamma, kind), atol=1e-10
            )
        else:
            expected = reference.sorted_loss(loss, scores[i], label)
            attained = reference.minus_conjugate(loss, rows[i], label) - rows[i] @ scores[i]
            assert attained == pytest.approx(expected, abs=1e-12)
        assert values[i] == pytest.approx(expected, abs=1e-11)
        assert conjugates[i] == pytest.approx(reference.minus_conjugate(loss, rows[i], label), abs=1e-12)
        assert squares[i] == pytest.approx(0.5 * gamma * reference.squares(rows[i], label, kind), abs=1e-13)
        assert reference.infeasibility(loss, rows[i], label) <= 1e-12
    assert outside.max() <= 1e-12


@pytest.mark.parametrize("loss", CERTIFIED, ids=problems.loss_name)
def test_a_row_outside_is_told_by_how_much(loss: Any) -> None:
    """Rows of the domain blown up, compared with the reference's own measure."""
    rng = np.random.default_rng(6)
    found = certified_loss(loss.to_dict(), problems.M)
    radius = loss.form(problems.M).rho.sum() if loss.form(problems.M).sparse_vertices else 1.0
    scores, y = rng.normal(size=(40, problems.M)), rng.integers(0, problems.M, size=40)
    rows = found.gradient(scores, y, 0.0, 0.0) * rng.uniform(0.5, 2.5, (40, 1))
    amounts = found.violations(rows, y) * radius
    expected = np.array(
        [reference.infeasibility(loss, row, label) for row, label in zip(rows, y, strict=True)]
    )
    np.testing.assert_array_equal(amounts > 1e-9, expected > 1e-9)
    assert (amounts > 1e-3).any()
    assert (amounts < 1e-9).any()


def test_a_row_that_does_not_sum_to_zero_is_a_violation() -> None:
    loss = RankedLoss.from_record({"name": "topk_hinge", "k": 2}, M)
    alpha = as_alpha(np.array([0.2, 0.2, 0.1]), 1)
    alpha[1] += 0.25
    assert loss.violations(alpha[None], np.array([1]))[0] == pytest.approx(0.25)


@pytest.mark.parametrize("name", ["weighted_topk_hinge", "weighted_usunier_hinge"])
def test_violations_are_shares_of_the_sum_of_the_rank_weights(name: str) -> None:
    """Of a sum that is not zero, and of a largest entry that is too large."""
    loss = RankedLoss.from_record({"name": name, "rho": RHO}, M)
    assert loss.radius == pytest.approx(0.9)
    unequal, large = (as_alpha(np.array(x), 1) for x in ([0.2, 0.1, 0.1], [0.8, 0.0, 0.0]))
    unequal[1] += 0.25
    found = loss.violations(np.stack([unequal, large]), np.full(2, 1))
    # The largest entry is at most 0.5; on the top-k side it asks for 1.6 times the whole.
    assert found == pytest.approx([0.25 / 0.9, 0.6 if name == "weighted_topk_hinge" else 0.3 / 0.9])


def test_linear_term_is_minus_margins_times_alpha() -> None:
    loss = RankedLoss.from_record(LOSSES[1], M)
    alpha = as_alpha(np.array([0.25, 0.5, 0.0]), 0)[None]
    assert loss.conjugate(alpha, np.array([0]))[0] == pytest.approx(0.25 * 1 + 0.5 * 2)


def test_an_unknown_loss_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="square_hinge"):
        certified_loss({"name": "square_hinge"}, M)


def test_a_loss_that_is_not_convex_is_refused_in_a_sentence() -> None:
    with pytest.raises(InputError, match="truncated_topk_entropy with k = 2 is not convex: it has no dual"):
        certified_loss({"name": "truncated_topk_entropy", "k": 2}, M)
    assert certified_loss({"name": "truncated_topk_entropy", "k": 1}, M) == certified_loss(
        {"name": "softmax"}, M
    )
