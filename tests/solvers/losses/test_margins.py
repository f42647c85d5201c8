"""Margins from class sizes and from trees, against their formulas and brute force over ancestors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from topline import StructuredHinge, TopKHinge, ldam_margins, logit_adjusted_margins, solve, tree_margins
from topline.solvers.errors import InvalidProblemError

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
