"""Kernels against loops over their definitions and against scikit-learn; names and refusals."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import sparse
from sklearn.metrics import pairwise
from sklearn.svm import SVC

from topline.pipeline.certification.sums import kernel_values
from topline.solvers.blocks.kernel import values_of
from topline.solvers.errors import InvalidProblemError, UnsupportedCombinationError
from topline.solvers.kernels import (
    KERNELS,
    ChiSquaredKernel,
    FeatureGroup,
    IntersectionKernel,
    Kernel,
    LaplacianKernel,
    LinearKernel,
    PolynomialKernel,
    PrecomputedKernel,
    ProductKernel,
    RBFKernel,
    SumKernel,
    WithConstant,
    as_kernel,
    kernel_from_dict,
    make_kernel,
)

RANDOM = np.random.default_rng(3)
X = np.abs(RANDOM.normal(size=(13, 4)))
Y = np.abs(RANDOM.normal(size=(6, 4)))
X[2] = Y[1] = 0.0


def chi_squared(x, y):
    return sum((a - b) ** 2 / (a + b) for a, b in zip(x, y, strict=True) if a + b > 0.0)


CASES = [
    (LinearKernel(), lambda x, y: x @ y, lambda X, Y: pairwise.linear_kernel(X, Y)),
    (
        RBFKernel(0.7),
        lambda x, y: math.exp(-0.7 * sum((x - y) ** 2)),
        lambda X, Y: pairwise.rbf_kernel(X, Y, gamma=0.7),
    ),
    (
        PolynomialKernel(4, 0.3, 1.5),
        lambda x, y: (0.3 * (x @ y) + 1.5) ** 4,
        lambda X, Y: pairwise.polynomial_kernel(X, Y, degree=4, gamma=0.3, coef0=1.5),
    ),
    (
        ChiSquaredKernel(0.4),
        lambda x, y: math.exp(-0.4 * chi_squared(x, y)),
        lambda X, Y: pairwise.chi2_kernel(X, Y, gamma=0.4),
    ),
    (
        LaplacianKernel(0.6),
        lambda x, y: math.exp(-0.6 * sum(abs(x - y))),
        lambda X, Y: pairwise.laplacian_kernel(X, Y, gamma=0.6),
    ),
    (
        IntersectionKernel(),
        lambda x, y: sum(np.minimum(x, y)),
        lambda X, Y: np.minimum(X[:, None], Y[None]).sum(axis=2),
    ),
    (
        SumKernel((FeatureGroup(RBFKernel(0.7), stop=1), FeatureGroup(LinearKernel(), start=1, weight=0.5))),
        lambda x, y: math.exp(-0.7 * (x[0] - y[0]) ** 2) + 0.5 * (x[1:] @ y[1:]),
        lambda X, Y: pairwise.rbf_kernel(X[:, :1], Y[:, :1], gamma=0.7) + 0.5 * X[:, 1:] @ Y[:, 1:].T,
    ),
    (
        ProductKernel((FeatureGroup(RBFKernel(0.7), stop=2), FeatureGroup(PolynomialKernel(2, 0.3, 1.0), 2))),
        lambda x, y: math.exp(-0.7 * sum((x[:2] - y[:2]) ** 2)) * (0.3 * (x[2:] @ y[2:]) + 1.0) ** 2,
        lambda X, Y: (
            pairwise.rbf_kernel(X[:, :2], Y[:, :2], gamma=0.7)
            * pairwise.polynomial_kernel(X[:, 2:], Y[:, 2:], degree=2, gamma=0.3, coef0=1.0)
        ),
    ),
]
BY_NAME = pytest.mark.parametrize(("kernel", "definition", "peer"), CASES, ids=[c[0].name for c in CASES])


@BY_NAME
def test_a_matrix_is_its_definition_and_scikit_learns(kernel, definition, peer) -> None:
    found = kernel.matrix(X, Y)
    assert found.shape == (13, 6)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, [[definition(x, y) for y in Y] for x in X], rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(found, peer(X, Y), rtol=1e-13, atol=1e-15)


@BY_NAME
def test_a_matrix_of_rows_with_themselves_is_symmetric_and_psd(kernel, definition, peer) -> None:
    K = kernel.matrix(X, X)
    np.testing.assert_allclose(K, K.T, rtol=1e-13)
    np.testing.assert_allclose(K, kernel.matrix(X, X.copy()), rtol=1e-13, atol=1e-15)
    assert np.linalg.eigvalsh(K).min() > -1e-12 * np.abs(K).max()


@BY_NAME
def test_certificates_have_the_same_values_by_code_of_their_own(kernel, definition, peer) -> None:
    found = kernel_values(json.loads(json.dumps(kernel.to_dict())), X, Y)
    np.testing.assert_allclose(found, kernel.matrix(X, Y), rtol=1e-12, atol=1e-14)


@BY_NAME
def test_tiles_of_float32_rows_are_near_the_matrix(kernel, definition, peer) -> None:
    low, other = X.astype(np.float32), Y.astype(np.float32)
    tile = values_of(kernel, low, other, np.arange(len(other)), np.dtype(np.float32))
    assert tile.dtype == np.float32
    np.testing.assert_allclose(tile, kernel.matrix(low, other), rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("gamma", [1e-3, 1.0, 1e6, 1e12])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_equal_rows_of_two_tiles_are_at_distance_0_whatever_gamma(gamma, form) -> None:
    rows = RANDOM.normal(size=(40, 6)).astype(np.float32) + 3.0
    near = rows[:20].copy()
    near[5] += np.float32(1e-6)
    wide, close = rows.astype(np.float64), near.astype(np.float64)
    brute = np.exp(-gamma * ((wide[:, None] - close[None]) ** 2).sum(axis=2))
    kernel = RBFKernel(gamma)
    for found in (
        kernel.matrix(form(rows), form(near)),
        kernel.tile(form(rows), form(near)),
        kernel_values(kernel.to_dict(), form(wide), form(close)),
    ):
        np.testing.assert_allclose(found, brute, atol=1e-5)
        assert found[0, 0] == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_the_median_rule_takes_the_median_distance(form) -> None:
    rows = np.repeat(RANDOM.normal(size=(30, 3)), 2, axis=0)
    pairs = [(x, y) for i, x in enumerate(rows) for y in rows[:i] if (x != y).any()]
    squares = np.median([sum((x - y) ** 2) for x, y in pairs])
    assert RBFKernel("median").resolved(form(rows)).gamma == pytest.approx(1.0 / squares)
    if form is np.asarray:
        lengths = np.median([sum(abs(x - y)) for x, y in pairs])
        assert LaplacianKernel("median").resolved(rows).gamma == pytest.approx(1.0 / lengths)
    assert RBFKernel("median").resolved(form(np.ones((3, 2)))).gamma == 1.0


@BY_NAME
def test_float32_rows_are_computed_in_float64(kernel, definition, peer) -> None:
    low, other = X.astype(np.float32), Y.astype(np.float32)
    np.testing.assert_array_equal(
        kernel.matrix(low, other), kernel.matrix(low.astype(np.float64), other.astype(np.float64))
    )


@pytest.mark.parametrize("kernel", [LinearKernel(), RBFKernel(0.7), PolynomialKernel(2, 0.5, 1.0)])
@pytest.mark.parametrize("mixed", [False, True])
def test_sparse_rows_say_what_dense_ones_say(kernel, mixed) -> None:
    thin, other = sparse.csr_matrix(X), Y if mixed else sparse.csr_array(Y)
    np.testing.assert_allclose(kernel.matrix(thin, other), kernel.matrix(X, Y), rtol=1e-13)
    assert kernel.resolved(thin) == kernel


def test_rbf_is_exactly_one_on_equal_rows_and_does_not_lose_far_clouds() -> None:
    far = RANDOM.normal(size=(20, 3)) + 1e7
    K = RBFKernel(0.5).matrix(far, far)
    assert (np.diag(K) == 1.0).all()
    brute = [[math.exp(-0.5 * sum((x - y) ** 2)) for y in far] for x in far]
    np.testing.assert_allclose(K, brute, rtol=1e-9)


@pytest.mark.parametrize("gamma", [None, "scale", "auto", 0.25])
@pytest.mark.parametrize("rows", [X, X.astype(np.float32), np.zeros((3, 4))], ids=["f8", "f4", "constant"])
def test_gamma_is_resolved_as_in_svc(gamma, rows) -> None:
    labels = np.arange(len(rows)) % 2
    peer = SVC(gamma="scale" if gamma is None else gamma).fit(rows, labels)
    for form in (rows, sparse.csr_matrix(rows)):
        assert RBFKernel(gamma).resolved(form).gamma == pytest.approx(peer._gamma, rel=1e-6)
        assert PolynomialKernel(gamma=gamma).resolved(form).gamma == pytest.approx(peer._gamma, rel=1e-6)


def test_an_unresolved_kernel_says_so() -> None:
    with pytest.raises(InvalidProblemError, match="gamma of the kernel rbf still waits for data"):
        RBFKernel().matrix(X, Y)


def test_a_constant_adds_one() -> None:
    kernel = WithConstant(RBFKernel()).resolved(X)
    np.testing.assert_array_equal(kernel.matrix(X, Y), RBFKernel().resolved(X).matrix(X, Y) + 1.0)


def test_precomputed_hands_its_values_on() -> None:
    K = X @ Y.T
    np.testing.assert_array_equal(PrecomputedKernel().matrix(K, None), K)
    np.testing.assert_array_equal(PrecomputedKernel().matrix(sparse.csr_matrix(K), None), K)


@pytest.mark.parametrize(
    "kernel",
    [*(case[0] for case in CASES), PrecomputedKernel(), RBFKernel("auto"), WithConstant(RBFKernel(2))],
    ids=str,
)
def test_records_make_the_same_kernel_again(kernel) -> None:
    assert isinstance(kernel, Kernel)
    assert kernel_from_dict(kernel.to_dict()) == kernel
    assert as_kernel(kernel) is kernel


def test_names_make_kernels() -> None:
    assert sorted(KERNELS) == [
        "chi2", "intersection", "laplacian", "linear", "polynomial", "precomputed", "rbf",
    ]  # fmt: skip
    assert make_kernel("rbf", gamma=2) == RBFKernel(2.0)
    assert make_kernel("polynomial", degree=2, coef0=1) == PolynomialKernel(2, None, 1.0)
    assert as_kernel("chi2") == ChiSquaredKernel(1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: as_kernel("gauss"), "no kernel named 'gauss'; use one of linear, rbf"),
        (lambda: as_kernel(RBFKernel), "the kernel is <class"),
        (lambda: as_kernel(3), "the kernel is 3; give one of"),
        (lambda: make_kernel("linear", gamma=1.0, degree=2), "linear takes no degree and no gamma"),
        (lambda: make_kernel("rbf", coef0=1.0), "rbf takes no coef0"),
        (lambda: kernel_from_dict({"name": "rbf"}), "described by \\[\\]; it takes \\['gamma'\\]"),
        (lambda: RBFKernel(0.0), "gamma of the kernel rbf is 0.0; give a positive number"),
        (lambda: RBFKernel(math.nan), "gamma of the kernel rbf is nan"),
        (lambda: RBFKernel("wide"), "gamma of the kernel rbf is 'wide'"),
        (lambda: RBFKernel(True), "gamma of the kernel rbf is True"),
        (lambda: ChiSquaredKernel("scale"), "gamma of the kernel chi2 is 'scale'"),
        (lambda: PolynomialKernel(0), "degree of the kernel polynomial is 0"),
        (lambda: PolynomialKernel(2.5), "degree of the kernel polynomial is 2.5"),
        (lambda: PolynomialKernel(coef0=-1.0), "coef0 of the kernel polynomial is -1.0"),
        (
            lambda: ChiSquaredKernel().matrix(X - 9.0, Y),
            "Negative values in data, such as -9, are not for the kernel chi2",
        ),
    ],
)
def test_what_makes_no_kernel_is_refused(make, message) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        make()


def test_chi_squared_of_sparse_rows_is_refused() -> None:
    with pytest.raises(UnsupportedCombinationError, match="chi2 takes no sparse features"):
        ChiSquaredKernel().matrix(sparse.csr_matrix(X), X)
