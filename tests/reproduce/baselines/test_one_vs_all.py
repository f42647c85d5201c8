"""One-vs-all by LIBLINEAR: the objective of each class, and what a model is made of."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from tests.reproduce.baselines import fit_one_vs_all
from tests.solvers.problems import examples
from topline import InvalidProblemError, TopKClassifier

X, Y = examples()


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
@pytest.mark.parametrize("C", [0.05, 1.0])
def test_it_is_the_certified_one_vs_all_of_this_package(loss, C) -> None:
    """Another solver, another objective's sum over classes: the same minimiser, to LIBLINEAR's tolerance."""
    theirs = fit_one_vs_all(X, Y, loss, C, tol=1e-7, max_iter=100_000)
    ours = TopKClassifier(loss=f"one_vs_all_{loss}", C=C, tol=1e-8, max_passes=20_000).fit(X, Y)
    assert theirs.converged
    assert ours.relative_gap_ <= 1e-8
    scores = theirs.scores(X)
    assert scores.shape == (len(X), len(np.unique(Y)))
    np.testing.assert_allclose(scores, ours.decision_function(X), atol=2e-3 * np.abs(scores).max())


def test_sparse_rows_and_labels_by_name() -> None:
    names = np.array(["ash", "birch", "cedar", "elm", "fir"])[Y]
    dense = fit_one_vs_all(X, Y, "logistic", tol=1e-8)
    thin = fit_one_vs_all(sparse.csr_matrix(X), names, "logistic", tol=1e-8)
    np.testing.assert_array_equal(thin.classes, np.unique(names))
    np.testing.assert_allclose(thin.scores(sparse.csr_matrix(X)), dense.scores(X), atol=1e-5)


def test_two_classes_have_two_columns_of_opposite_sign() -> None:
    model = fit_one_vs_all(X, Y > 1, "logistic", tol=1e-8)
    scores = model.scores(X)
    np.testing.assert_allclose(scores[:, 0], -scores[:, 1], atol=1e-4)


def test_binary_relevance_is_a_problem_for_each_label() -> None:
    rng = np.random.default_rng(0)
    has = np.column_stack([rng.random((len(X), 2)) < 0.4, np.ones(len(X)), np.zeros(len(X))])
    model = fit_one_vs_all(X, has, "logistic", tol=1e-8)
    scores = model.scores(X)
    for j in range(2):
        alone = fit_one_vs_all(X, has[:, j] > 0, "logistic", tol=1e-8)
        np.testing.assert_allclose(scores[:, j], alone.scores(X)[:, 1], atol=1e-5)
    again = fit_one_vs_all(X.tolist(), sparse.csr_matrix(has), "logistic", tol=1e-8).scores(X)
    np.testing.assert_array_equal(again, scores)
    # A label that tells nobody apart.
    np.testing.assert_array_equal(scores[:, 2:], np.tile([1.0, -1.0], (len(X), 1)))


def test_a_short_budget_is_told() -> None:
    assert not fit_one_vs_all(X, Y, "hinge", 100.0, tol=1e-12, max_iter=2).converged


@pytest.mark.parametrize(("loss", "y"), [("squared", Y), ("hinge", np.zeros(len(X)))])
def test_refusals(loss, y) -> None:
    with pytest.raises(InvalidProblemError, match="use hinge or logistic, and examples of at least two"):
        fit_one_vs_all(X, y, loss)
