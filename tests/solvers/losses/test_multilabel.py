"""Training on label sets: what is the same in every form of it, on several blocks, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import sparse

from tests.reference import losses as reference
from tests.reference.training_qp import optimum
from tests.solvers.problems import M, examples, several_labels
from topline import (
    AverageTopK,
    InvalidProblemError,
    LabelSets,
    MaxHinge,
    MultilabelHinge,
    MultilabelSoftmax,
    OneVsAll,
    RBFKernel,
    SerialExecutor,
    Softmax,
    Status,
    UnsupportedCombinationError,
    regularisation_path,
    solve,
)
from topline.solvers.blocks.ascent.sweeps import repeated_sweeps
from topline.solvers.core.problem import Problem
from topline.solvers.losses.base import NO_MARGINS
from topline.solvers.projections.columns import own_shares
from topline.solvers.run import ProblemSpec, compile_jit_functions

X, Y = examples(n=60)
SETS, CODES = several_labels(Y)
INDICATOR = SETS.indicator(CODES).astype(int)
LABELS = [SETS.labels(code) for code in CODES]
LAM = 0.02
#: A hinge, its envelope, the entropy, and binary relevance.
CASES = [
    (MultilabelHinge(), 0.0),
    (MultilabelHinge(), 0.5),
    (MultilabelSoftmax(), 0.0),
    (OneVsAll("hinge"), 0.0),
    (OneVsAll("hinge"), 0.5),
    (OneVsAll("logistic"), 0.0),
]
each_case = pytest.mark.parametrize(
    ("loss", "smoothing"), CASES, ids=lambda value: getattr(value, "name", value)
)


@each_case
def test_an_indicator_and_numbered_sets_are_the_same_problem(loss, smoothing) -> None:
    options = {"max_passes": 6, "tol": 1e-9}
    numbered = solve(X, CODES, loss, LAM, smoothing, label_sets=SETS, **options)
    for matrix in (INDICATOR, sparse.csr_matrix(INDICATOR)):
        given = solve(X, matrix, loss, LAM, smoothing, **options)
        np.testing.assert_array_equal(given.W, numbered.W)
        assert given.problem == numbered.problem


@each_case
def test_ascent_on_blocks_certifies_the_same_optimum(loss, smoothing) -> None:
    best = optimum(X, LABELS, loss, LAM, smoothing, M)
    for blocks in (1, 3):
        with SerialExecutor(blocks=blocks) as executor:
            result = solve(X, INDICATOR, loss, LAM, smoothing, tol=1e-3, executor=executor)
        assert result.status is Status.SOLVED
        assert result.dual - 1e-9 <= best <= result.primal + 1e-9


@each_case
def test_sparse_rows_and_packed_duals_change_nothing(loss, smoothing) -> None:
    rows = np.where(np.random.default_rng(3).random(X.shape) < 0.5, X, 0.0)
    options = {"tol": 1e-4}
    dense = solve(rows, INDICATOR, loss, LAM, smoothing, executor=SerialExecutor(), **options)
    with SerialExecutor(dual_bytes=2000) as packed:
        again = solve(rows, INDICATOR, loss, LAM, smoothing, executor=packed, **options)
        assert again.status is Status.SOLVED
        assert again.primal == pytest.approx(dense.primal, rel=2e-4)
    for matrix in (sparse.csr_matrix(rows), sparse.csr_matrix(rows.astype(np.float32))):
        other = solve(matrix, INDICATOR, loss, LAM, smoothing, **options)
        assert other.status is Status.SOLVED
        assert other.primal == pytest.approx(dense.primal, rel=2e-4)


@pytest.mark.parametrize(
    ("several", "single", "smoothing"),
    [
        (MultilabelHinge(), MaxHinge(), 0.0),
        (MultilabelHinge(), MaxHinge(), 0.7),
        (MultilabelSoftmax(), Softmax(), 0.0),
        (OneVsAll("hinge"), OneVsAll("hinge"), 0.7),
    ],
    ids=str,
)
def test_single_labels_are_sets_of_one(several, single, smoothing) -> None:
    """Erratum h1: with one label each the smooth multilabel SVM is the Moreau envelope of the max hinge."""
    sets = LabelSets.from_indicator(np.eye(M))[0]
    code_of = np.array([next(s for s in range(M) if sets.labels(s)[0] == label) for label in range(M)])
    options = {"tol": 1e-8, "method": "dual_ascent", "max_passes": 5000}
    alone = solve(X, Y, single, LAM, smoothing, **options)
    result = solve(X, code_of[Y], several, LAM, smoothing, label_sets=sets, **options)
    assert result.primal == pytest.approx(alone.primal, rel=2e-8)
    scores = X @ np.random.default_rng(4).standard_normal((X.shape[1], M))
    for s, label in zip(scores, Y, strict=True):
        assert reference.sorted_loss(several, s, np.array([label])) == pytest.approx(
            reference.sorted_loss(single, s, label), rel=1e-13
        )


def test_examples_without_labels_or_with_all_of_them_cost_the_hinge_nothing() -> None:
    rows = np.vstack([INDICATOR, np.zeros((5, M), int), np.ones((5, M), int)])
    features = np.vstack([X, 9.0 * np.random.default_rng(5).standard_normal((10, X.shape[1]))])
    result = solve(features, rows, MultilabelHinge(), LAM * len(X) / len(rows), 0.5, tol=1e-8)
    alone = solve(X, INDICATOR, MultilabelHinge(), LAM, 0.5, tol=1e-8)
    assert not result.A[60:].any()
    assert result.primal * len(rows) == pytest.approx(alone.primal * len(X), rel=1e-7)


def test_an_example_without_labels_is_refused_by_the_cross_entropy() -> None:
    rows = INDICATOR.copy()
    rows[7] = 0
    with pytest.raises(
        InvalidProblemError, match="row 7 has no label, and multilabel_softmax shares"
    ) as refusal:
        solve(X, rows, MultilabelSoftmax(), LAM)
    assert "multilabel_hinge" in str(refusal.value)


def test_a_kernel_and_a_path() -> None:
    result = solve(X, INDICATOR, MultilabelHinge(), LAM, 0.5, kernel=RBFKernel(0.3), tol=1e-6)
    K = np.exp(-0.3 * np.sum((X[:, None] - X[None]) ** 2, axis=2))
    features = np.linalg.cholesky(K + 1e-12 * np.eye(len(X)))
    same = solve(features, INDICATOR, MultilabelHinge(), LAM, 0.5, tol=1e-6)
    assert result.primal == pytest.approx(same.primal, rel=3e-6)
    path = regularisation_path(X, CODES, MultilabelSoftmax(), [0.1, 1.0], label_sets=SETS, tol=1e-6)
    for C, end in zip((0.1, 1.0), path, strict=True):
        alone = solve(X, INDICATOR, MultilabelSoftmax(), 1.0 / (len(X) * C), tol=1e-6)
        assert end.primal == pytest.approx(alone.primal, rel=3e-6)


def test_duals_of_another_loss_are_a_start() -> None:
    """Rows are put inside the domain of the other loss: what the dual says then bounds the optimum."""
    hinge = solve(X, INDICATOR, MultilabelHinge(), LAM, tol=1e-3)
    for loss in (MultilabelSoftmax(), OneVsAll("hinge"), MultilabelHinge()):
        smoothing = 0.5 if loss.name.endswith("hinge") else 0.0
        warm = solve(
            X, INDICATOR, loss, LAM, smoothing, duals=[(0, len(X), 1.5 * hinge.A)], tol=1e-6, max_passes=400
        )
        best = optimum(X, LABELS, loss, LAM, smoothing, M)
        assert warm.status is Status.SOLVED
        assert warm.history[0].dual <= best + 1e-9
        assert warm.dual - 1e-9 <= best <= warm.primal + 1e-9


def test_the_worst_examples_alone() -> None:
    """The average top-k risk takes the losses of label sets like any other; k = n is the mean."""
    mean = solve(X, INDICATOR, MultilabelHinge(), LAM, tol=1e-5)
    all_of_them = solve(X, INDICATOR, MultilabelHinge(), LAM, risk=AverageTopK(60), tol=1e-4, max_passes=3000)
    assert all_of_them.primal == pytest.approx(mean.primal, rel=2e-4)


def test_the_kernels_of_single_labels_serve_label_sets() -> None:
    """Nothing is compiled once more for the table; what is, is compiled ahead."""
    compile_jit_functions(ProblemSpec(MultilabelSoftmax(), method="dual_ascent"), 4, M, several=True)
    compiled = len(repeated_sweeps.signatures)
    solve(X.astype(np.float32), INDICATOR, MultilabelSoftmax(), LAM, max_passes=5)
    solve(X.astype(np.float32), Y, Softmax(), LAM, max_passes=5)
    assert len(repeated_sweeps.signatures) == compiled


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"loss": Softmax()},
            UnsupportedCombinationError,
            "the loss softmax is for examples with one label each",
        ),
        (
            {"label_sets": None},
            InvalidProblemError,
            "multilabel_hinge is for examples with several labels; give",
        ),
        ({"label_sets": [[0]]}, InvalidProblemError, "label_sets is .*; give the LabelSets that"),
        ({"m": M + 1}, InvalidProblemError, "the label sets are of 5 labels but there are 6 classes"),
        ({"y": CODES + len(SETS)}, InvalidProblemError, "labels must lie between 0 and"),
        (
            {"smoothing_kind": "others", "smoothing": 0.5},
            UnsupportedCombinationError,
            "smoothing kind others",
        ),
        ({"y": 2 * INDICATOR, "label_sets": None}, InvalidProblemError, "other values than 0 and 1"),
    ],
)
def test_what_is_no_problem_of_label_sets_is_refused(change, error, message) -> None:
    arguments = {"y": CODES, "loss": MultilabelHinge(), "lam": LAM, "label_sets": SETS} | change
    with pytest.raises(error, match=message):
        solve(X, **arguments)


def test_losses_of_single_labels_refuse_a_matrix_as_before() -> None:
    with pytest.raises(InvalidProblemError, match="the labels have the shape"):
        solve(X, INDICATOR, Softmax(), LAM)


def test_a_problem_names_its_label_sets() -> None:
    """A checkpoint of other sets with the same numbers is another problem."""
    others = LabelSets.from_indicator(1 - INDICATOR)[0]
    problem = Problem(MultilabelHinge(), *X.shape, M, LAM, label_sets=SETS)
    assert problem.to_dict()["label_sets"] == SETS.digest
    assert problem != Problem(MultilabelHinge(), *X.shape, M, LAM, label_sets=others)


def indicator(rng, n=40, m=5):
    return (rng.random((n, m)) < 0.4).astype(np.int8)


def test_indicator_returns():
    Y = indicator(np.random.default_rng(0))
    sets, codes = LabelSets.from_indicator(Y)
    assert codes.shape == (40,)
    assert codes.dtype == np.int64
    assert len(sets) == len(np.unique(Y, axis=0)) == codes.max() + 1
    np.testing.assert_array_equal(sets.indicator(codes), Y)
    np.testing.assert_array_equal(sets.sizes[codes], Y.sum(axis=1))
    for i in (0, 7, 39):
        np.testing.assert_array_equal(sets.labels(codes[i]), np.flatnonzero(Y[i]))


@pytest.mark.parametrize("make", [sparse.csr_matrix, sparse.csr_array, sparse.coo_array, np.asarray])
def test_table_depends_neither_on_the_format_nor_on_the_order_of_rows(make):
    rng = np.random.default_rng(1)
    Y = indicator(rng)
    sets, codes = LabelSets.from_indicator(Y)
    order = rng.permutation(len(Y))
    again, shuffled = LabelSets.from_indicator(make(Y[order]))
    assert again == sets
    assert hash(again) == hash(sets)
    np.testing.assert_array_equal(shuffled, codes[order])


def test_lists_are_sets():
    sets, codes = LabelSets.from_lists([[2, 0, 2], [], [0, 2], [1]], 3)
    np.testing.assert_array_equal(sets.indicator(codes), [[1, 0, 1], [0, 0, 0], [1, 0, 1], [0, 1, 0]])
    assert codes[0] == codes[2]


def test_kernels_read_the_same_sets():
    sets, _ = LabelSets.from_lists([[], [1], [0, 2], [0, 1, 2]], 3)
    shares = np.empty(3)
    for code in range(len(sets)):
        size = own_shares(sets.table, code, shares)
        assert size == len(sets.labels(code)) == np.count_nonzero(shares)
        np.testing.assert_array_equal(shares * size, sets.indicator(np.array([code]))[0])
    # Without a table y is the one own class.
    assert own_shares(NO_MARGINS, 2, shares) == 1
    assert shares.tolist() == [0.0, 0.0, 1.0]


def test_dict_returns_through_json():
    sets, _ = LabelSets.from_lists([[], [1], [0, 2]], 3)
    assert LabelSets.from_dict(json.loads(json.dumps(sets.to_dict()))) == sets


def test_digest_tells_tables_apart():
    digests = {
        LabelSets([0, 1, 2], [0, 1], 2).digest,
        LabelSets([0, 1, 2], [1, 0], 2).digest,
        LabelSets([0, 1, 2], [0, 1], 3).digest,
        LabelSets([0, 2], [0, 1], 2).digest,
        LabelSets([0, 0, 2], [0, 1], 2).digest,
    }
    assert len(digests) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 1], [0], 0), "m of the label sets is 0"),
        (([0, 1], [0.5], 2), "indices of the label sets has the shape"),
        (([0, 2], [0], 2), "must rise from 0 to the 1 labels"),
        (([1, 1], [0], 2), "must rise from 0"),
        (([], [], 2), "must rise from 0"),
        (([0, 1], [2], 2), "holds the label 2; labels must lie between 0 and 1"),
        (([0, 1, 3], [0, 1, 1], 2), "the labels of label set 1 do not ascend"),
        (([0, 1, 1, 2], [0, 0], 2), "label sets 0 and 2 are the same"),
    ],
)
def test_what_is_no_table_is_refused(arguments, message):
    with pytest.raises(InvalidProblemError, match=message):
        LabelSets(*arguments)


@pytest.mark.parametrize(
    ("Y", "message"),
    [
        ([0, 1], "has the shape"),
        ([[0, 2]], "other values than 0 and 1"),
        ([[0.0, np.nan]], "other values than 0 and 1"),
        ([["a", "b"]], "other values than 0 and 1"),
    ],
)
def test_what_is_no_indicator_is_refused(Y, message):
    with pytest.raises(InvalidProblemError, match=message):
        LabelSets.from_indicator(Y)


def test_incomplete_record_is_refused():
    with pytest.raises(InvalidProblemError, match=r"without \['indptr'\]"):
        LabelSets.from_dict({"m": 2, "indices": []})
