"""The AT_k-SVM: its equations, its dual, and the machines of scikit-learn that it contains."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.svm import SVC, NuSVC, NuSVR

from tests.reference.average_top import loss_values, sorted_average
from tests.solvers.average_top.equations import (
    dual_of_equation_6,
    equation_5,
    equation_6,
    is_nu_svm,
    rho_of,
)
from tests.solvers.average_top.problems import EVERY_LOSS, examples
from topline import InvalidProblemError, LinearKernel, RBFKernel, Status
from topline.solvers.average_top import (
    C_from_equation_3,
    C_to_equation_3,
    minimise,
    minimise_with_kernel,
)
from topline.solvers.kernels import KernelFeatures

N = 40
X, Y = examples("hinge", n=N)
K = RBFKernel(0.5).matrix(X, X)
TARGETS = examples("square", n=N, seed=4)[1]


def mirrored(K):
    """Kernel of the examples (phi, y) and (-phi, -y).

    Scikit-learn's machines have a bias, which is 0 on such data by symmetry; nothing else changes.
    """
    return np.block([[K, -K], [-K, K]])


def fitted(k, C_3, loss="hinge", y=Y):
    """Solve eq. 3 of the kernel K; gives the result and its scores."""
    result = minimise_with_kernel("precomputed", K, y, loss, k, C_from_equation_3(C_3, k, N), tol=1e-10)
    return result, K @ result.coefficients


@pytest.mark.parametrize("name", EVERY_LOSS)
def test_values_are_those_of_the_kernel_matrix(name) -> None:
    y = Y if name in ("hinge", "logistic") else TARGETS
    result, scores = fitted(25, 4.0, name, y)
    c, C = result.coefficients, C_from_equation_3(4.0, 25, N)
    assert result.status is Status.SOLVED
    assert result.relative_gap <= 1e-10
    primal = sorted_average(loss_values(name, scores, y), 25) + c @ K @ c / (2.0 * C)
    assert result.primal == pytest.approx(primal, rel=1e-13)
    dual = result.bound.b - 0.5 * C * result.bound.u @ K @ result.bound.u
    assert result.dual == pytest.approx(dual, rel=1e-12)
    np.testing.assert_allclose(result.expansion.scores(K)[:, 0], scores, atol=1e-12)


@pytest.mark.parametrize("name", EVERY_LOSS)
def test_the_linear_kernel_is_the_linear_problem(name) -> None:
    rows, y = examples(name)
    linear = minimise(rows, y, name, 15, 2.0, tol=1e-10)
    kernel = minimise_with_kernel(LinearKernel(), rows, y, name, 15, 2.0, tol=1e-10)
    assert kernel.primal == pytest.approx(linear.primal, rel=1e-9)
    np.testing.assert_allclose(rows.T @ kernel.coefficients, linear.w, atol=1e-4)


def test_the_hinge_leaves_out_what_does_not_support() -> None:
    result = minimise_with_kernel("precomputed", K, Y, "hinge", N, 100.0, tol=1e-6)
    scores = K @ result.coefficients
    assert 0 < len(result.expansion.support) < N
    beyond = Y * scores > 1.0 + 1e-4
    assert beyond.any()
    assert not result.coefficients[beyond].any()


@pytest.mark.parametrize(("k", "C_3"), [(12, 1.0), (20, 50.0), (33.5, 3.0), (40, 3.0)])
def test_equations_5_and_6_and_the_dual_that_the_paper_lacks(k, C_3) -> None:
    """Erratum h5: (5) is (6) and k/n, both are k/n AT_k at their minimum, and the dual closes the gap."""
    result, f = fitted(k, C_3)
    norm, rho = f @ result.coefficients, rho_of(f, Y, k)
    assert 0.0 <= rho <= 1.0
    fifth, sixth = equation_5(f, Y, 1.0 - rho, k, C_3, norm), equation_6(f, Y, rho, k, C_3, norm)
    assert fifth == pytest.approx(k / N * result.primal, rel=1e-12)
    assert fifth - sixth == pytest.approx(k / N, rel=1e-12)
    alpha = k / N * result.bound.p
    assert alpha.max() <= (1.0 + 1e-12) / N
    assert alpha.sum() <= (1.0 + 1e-12) * k / N
    assert dual_of_equation_6(K, Y, alpha, k, C_3) == pytest.approx(sixth, abs=1e-9)
    # rho minimises (6) at f: no other one in [0, 1] is better.
    grid = np.linspace(0.0, 1.0, 101)
    assert sixth <= min(equation_6(f, Y, other, k, C_3, norm) for other in grid) + 1e-12


def test_k_equal_to_n_is_the_svm() -> None:
    _, f = fitted(N, 5.0)
    svm = SVC(kernel="precomputed", C=5.0 / (2 * N), tol=1e-9).fit(mirrored(K), np.concatenate([Y, -Y]))
    np.testing.assert_allclose(svm.decision_function(mirrored(K))[:N], f, atol=1e-5)


@pytest.mark.parametrize(("k", "C_3"), [(12, 1.0), (20, 1.0), (30, 2.0)])
def test_with_rho_below_one_it_is_the_nu_svm(k, C_3) -> None:
    """LIBSVM divides scores by rho, so that the scale C_3 falls out."""
    _, f = fitted(k, C_3)
    rho = rho_of(f, Y, k)
    assert 0.0 < rho < 1.0
    nu = NuSVC(nu=k / N, kernel="precomputed", tol=1e-9).fit(mirrored(K), np.concatenate([Y, -Y]))
    np.testing.assert_allclose(nu.decision_function(mirrored(K))[:N], f / rho, atol=1e-4)


def test_with_rho_at_one_it_is_not() -> None:
    """Erratum h5: C = 1 and K <= 1, or C k/n max K <= 1, is no technicality."""
    _, f = fitted(20, 50.0)
    assert rho_of(f, Y, 20) == pytest.approx(1.0, abs=1e-9)
    nu = NuSVC(nu=0.5, kernel="precomputed", tol=1e-9).fit(mirrored(K), np.concatenate([Y, -Y]))
    assert np.abs(nu.decision_function(mirrored(K))[:N] - f).max() > 0.1
    assert not is_nu_svm(K, 20, 50.0)


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("k", [15, 30, 39.5])
def test_the_condition_for_nu_is_sufficient(scale, k) -> None:
    """Where `is_nu_svm` says so, rho <= 1 costs nothing: the free problem stays within it."""
    C_3 = N / (k * scale * np.diag(K).max())
    assert is_nu_svm(scale * K, k, C_3 * (1.0 - 1e-12))
    assert not is_nu_svm(scale * K, k, C_3 * 1.01)
    C = C_from_equation_3(C_3, k, N)
    result = minimise_with_kernel("precomputed", scale * K, Y, "hinge", k, C, tol=1e-10)
    assert rho_of(scale * K @ result.coefficients, Y, k) <= 1.0
    # Weights that sum to 1 say that the threshold 1 - rho >= 0 does not bind.
    assert result.bound.p.sum() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(("k", "C_3"), [(10, 5.0), (20, 1.0), (40, 5.0)])
def test_the_absolute_loss_is_nu_svr(k, C_3) -> None:
    """Erratum h5: with nu = k/n, not for the average alone, which is nu = 1."""
    _, f = fitted(k, C_3, "absolute", TARGETS)
    svr = NuSVR(nu=k / N, C=C_3 / (2 * N), kernel="precomputed", tol=1e-9)
    svr.fit(mirrored(K), np.concatenate([TARGETS, -TARGETS]))
    np.testing.assert_allclose(svr.predict(mirrored(K))[:N], f, atol=1e-4)


def test_one_factorisation_serves_many_calls() -> None:
    features = KernelFeatures.of("rbf", X)
    for k in (30, 40):
        again = minimise_with_kernel(features, X, Y, "hinge", k, 5.0)
        np.testing.assert_array_equal(
            again.coefficients, minimise_with_kernel("rbf", X, Y, "hinge", k, 5.0).coefficients
        )


def test_a_collapsed_machine_has_no_support() -> None:
    twice, both = np.vstack([X, X]), np.concatenate([Y, -Y])
    result = minimise_with_kernel("rbf", twice, both, "hinge", 2, 10.0)
    assert result.collapsed
    assert not result.coefficients.any()
    assert not result.expansion.scores(X).any()
    assert result.primal == pytest.approx(1.0)


def test_indefinite_kernels_are_refused() -> None:
    with pytest.raises(InvalidProblemError, match="not positive semi-definite"):
        minimise_with_kernel("precomputed", -np.eye(N), Y, "hinge", 3, 1.0)
    assert C_to_equation_3(1.0, 20, N) == 2.0
