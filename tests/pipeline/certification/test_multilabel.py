"""The certificate's losses of label sets against their definitions, an LP and a general solver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import approx_fprime, linprog

from tests.reference.qp import least_on_simplex
from topline.pipeline.certification.formulas import CertifiedLoss, certified_loss, envelope, penalties
from topline.storage.datasets import LabelSetTable

M = 4
SETS: list[list[int]] = [[], [2], [0, 3], [1, 2, 3], [0, 1, 2, 3]]
TABLE = LabelSetTable.checked(
    np.cumsum([0, *map(len, SETS)]), np.array([label for labels in SETS for label in labels]), M
)
NAMES = ("multilabel_hinge", "multilabel_softmax", "one_vs_all_hinge", "one_vs_all_logistic")

Array = np.ndarray[Any, Any]


def made(name: str) -> CertifiedLoss:
    return certified_loss({"name": name}, M, TABLE)


def codes(name: str, count: int) -> Array:
    """Numbers of sets, in turn; the softmax has no empty set."""
    first = 1 if name == "multilabel_softmax" else 0
    return first + np.arange(count) % (len(SETS) - first)


def value(name: str, s: Array, labels: list[int]) -> float:
    """The loss of one row, as the thesis writes it."""
    others = [j for j in range(M) if j not in labels]
    if name == "multilabel_hinge":
        return max([0.0, *(1.0 + s[j] - s[y] for y in labels for j in others)])
    if name == "multilabel_softmax":
        return float(np.mean([np.log(np.exp(s - s[y]).sum()) for y in labels]))
    z = np.where(np.isin(np.arange(M), labels), 1.0, -1.0) * s
    return float(np.maximum(0, 1 - z).sum() if name == "one_vs_all_hinge" else np.log1p(np.exp(-z)).sum())


def corners(name: str, labels: list[int]) -> Array:
    """Vertices of the domain of a hinge's dual rows."""
    others = [j for j in range(M) if j not in labels]
    if name == "multilabel_hinge":
        found = [np.zeros(M)]
        found += [np.eye(M)[y] - np.eye(M)[j] for y in labels for j in others]
        return np.array(found)
    signs = np.where(np.isin(np.arange(M), labels), 1.0, -1.0)
    return np.array([signs * part for part in np.ndindex(*(2,) * M)])


@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_the_definition(name: str) -> None:
    rng = np.random.default_rng(0)
    scores, y = rng.normal(size=(60, M)) * np.repeat([0.2, 1.0, 5.0], 20)[:, None], codes(name, 60)
    expected = [value(name, s, SETS[code]) for s, code in zip(scores, y, strict=True)]
    assert made(name).values(scores, y) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["multilabel_hinge", "one_vs_all_hinge"])
def test_the_domain_of_a_hinge_is_the_hull_of_its_vertices(name: str) -> None:
    """Points of the hull have no violation; random rows have none exactly if an LP finds them inside."""
    loss, rng = made(name), np.random.default_rng(1)
    outcomes = set()
    for code, labels in enumerate(SETS):
        hull = corners(name, labels)
        inside = rng.dirichlet(np.full(len(hull), 0.3), size=10) @ hull
        assert loss.violations(inside, np.full(10, code)).max() <= 1e-12
        for row in rng.normal(size=(15, M)) * 0.4:
            row -= row.mean() if name == "multilabel_hinge" else 0.0
            equal = np.vstack([hull.T, np.ones(len(hull))])
            feasible = linprog(np.zeros(len(hull)), A_eq=equal, b_eq=[*row, 1.0]).status == 0
            assert (loss.violations(row[None], np.array([code]))[0] <= 1e-9) == feasible
            outcomes.add(feasible)
    assert outcomes == {False, True} or name == "one_vs_all_hinge"


def test_rows_of_the_softmax_are_shares_less_a_distribution() -> None:
    loss, rng = made("multilabel_softmax"), np.random.default_rng(2)
    y = codes("multilabel_softmax", 40)
    shares = np.array([[label in SETS[code] for label in range(M)] for code in y]) / np.array(
        [[len(SETS[code])] for code in y]
    )
    p = rng.dirichlet(np.ones(M), size=40)
    assert loss.violations(shares - p, y).max() <= 1e-15
    assert loss.conjugate(shares - p, y) == pytest.approx(-(p * np.log(p)).sum(axis=1), abs=1e-12)
    assert loss.violations(shares - 1.1 * p, y).min() > 0.05
    away = p.copy()
    away[:, 0], away[:, 1] = -0.2, away[:, 1] + p[:, 0] + 0.2
    assert loss.violations(shares - away, y) == pytest.approx(0.2, abs=1e-12)


@pytest.mark.parametrize("gamma", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("name", ["multilabel_hinge", "one_vs_all_hinge"])
def test_the_envelope_is_the_penalised_maximum(name: str, gamma: float) -> None:
    """Against a general solver over the weights of the vertices."""
    loss, rng = made(name), np.random.default_rng(3)
    scores, y = rng.normal(size=(10, M)), codes(name, 10)
    values, rows = envelope(loss, scores, y, gamma, gamma), loss.gradient(scores, y, gamma, gamma)
    assert loss.violations(rows, y).max() <= 1e-12
    for i, code in enumerate(y):
        hull = corners(name, SETS[code])
        worth = loss.conjugate(hull, np.full(len(hull), code))

        def negative(w: Array, hull: Array = hull, worth: Array = worth, s: Array = scores[i]) -> float:
            x = w @ hull
            return float(0.5 * gamma * x @ x + x @ s - w @ worth)

        weights, least = least_on_simplex(negative, len(hull))
        # Any feasible point bounds the maximum from below.
        assert values[i] >= -negative(weights) - 1e-9
        assert values[i] == pytest.approx(-least, abs=2e-5)


@pytest.mark.parametrize(
    ("name", "gamma"),
    [("multilabel_hinge", 0.7), ("one_vs_all_hinge", 0.7), *((name, 0.0) for name in NAMES)],
)
def test_rows_are_gradients_and_meet_fenchel_and_young(name: str, gamma: float) -> None:
    """Finite differences where the loss is smooth; the equality at the gradient, the inequality elsewhere."""
    loss, rng = made(name), np.random.default_rng(4)
    scores, y = rng.normal(size=(25, M)), codes(name, 25)
    rows = loss.gradient(scores, y, gamma, gamma)
    values = envelope(loss, scores, y, gamma, gamma)
    if gamma or name in ("multilabel_softmax", "one_vs_all_logistic"):
        for i, code in enumerate(y):

            def at(s: Array, code: int = code) -> float:
                return float(envelope(loss, s[None], np.array([code]), gamma, gamma)[0])

            slope = approx_fprime(scores[i], at, 1e-7)
            assert -rows[i] == pytest.approx(slope, abs=1e-5)
    others = loss.gradient(rng.normal(size=scores.shape), y, gamma, gamma)
    for u, equal in ((rows, True), (others, False)):
        bound = loss.conjugate(u, y) - np.einsum("ij,ij->i", u, scores) - penalties(u, y, gamma, gamma)
        if equal:
            assert bound == pytest.approx(values, abs=1e-10)
        assert (bound <= values + 1e-10).all()


@pytest.mark.parametrize("gamma", [0.0, 0.7])
def test_rows_that_lose_nothing_are_zero(gamma: float) -> None:
    scores = np.array([[100.0 if j in labels else -100.0 for j in range(M)] for labels in SETS])
    found = made("multilabel_hinge").gradient(scores, np.arange(len(SETS)), gamma, gamma)
    np.testing.assert_allclose(found, 0.0, atol=1e-12)


def test_single_labels_are_sets_of_one() -> None:
    """One-vs-all, and the hinge and softmax beside the losses that they become."""
    single = LabelSetTable.checked(np.arange(M + 1), np.arange(M), M)
    rng = np.random.default_rng(5)
    scores, y = rng.normal(size=(30, M)), rng.integers(0, M, 30)
    same = {
        "multilabel_hinge": "max_hinge",
        "multilabel_softmax": "softmax",
        "one_vs_all_hinge": "one_vs_all_hinge",
        "one_vs_all_logistic": "one_vs_all_logistic",
    }
    for several, one in same.items():
        for gamma in (0.0, 0.5) if several.endswith("hinge") else (0.0,):
            found = envelope(certified_loss({"name": several}, M, single), scores, y, gamma, gamma)
            expected = envelope(certified_loss({"name": one}, M), scores, y, gamma, gamma)
            assert found == pytest.approx(expected, abs=1e-10)
