"""Feature maps: their inner products are the kernels that they stand for, in dense and sparse rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.kernel_approximation import AdditiveChi2Sampler
from sklearn.preprocessing import normalize

from topline.pipeline.errors import ConfigError
from topline.pipeline.rows.transforms import Transforms

RNG = np.random.default_rng(2)
#: Histograms with empty bins and an empty row.
X = (RNG.gamma(0.5, size=(40, 6)) * (RNG.uniform(size=(40, 6)) > 0.3)).astype(np.float32)
X[7] = 0.0
SIGNED = (X * RNG.choice([-1, 1], X.shape)).astype(np.float32)


def applied(names: str, rows: Any) -> Any:
    return Transforms.fit(names.split(","), lambda: [rows]).apply(rows)


def test_power_is_the_signed_power() -> None:
    for names, exponent in (("power", 0.5), ("power:0.3", 0.3), ("power:1", 1.0)):
        truth = np.sign(SIGNED) * np.abs(SIGNED.astype(float)) ** exponent
        np.testing.assert_allclose(applied(names, SIGNED), truth, rtol=1e-5)


def test_hellinger_is_the_kernel_of_distributions() -> None:
    shares = normalize(X.astype(float), "l1")
    kernel = np.array([[np.sum(np.sqrt(x * y)) for y in shares] for x in shares])
    Z = applied("hellinger", X).astype(float)
    np.testing.assert_allclose(Z @ Z.T, kernel, atol=1e-5)
    np.testing.assert_allclose(applied("hellinger", SIGNED), np.sign(SIGNED) * Z, atol=1e-6)
    # Which is square rooting and division by the length, in either order of the two.
    np.testing.assert_allclose(applied("power,l2", X), Z, atol=1e-5)


@pytest.mark.parametrize(("samples", "error"), [(1, 0.6), (2, 0.15), (3, 0.08)])
def test_chi2_comes_near_the_chi_squared_kernel(samples: int, error: float) -> None:
    pair = X[:, None, :].astype(float), X[None, :, :].astype(float)
    total = pair[0] + pair[1]
    product = 2 * pair[0] * pair[1]
    kernel = np.divide(product, total, out=np.zeros_like(total), where=total > 0).sum(axis=2)
    Z = applied(f"chi2:{samples}", X).astype(float)
    assert Z.shape == (40, 6 * (2 * samples - 1))
    # Relative to sqrt(k(x, x) k(y, y)); more samples of the spectrum come nearer.
    scale = np.sqrt(np.outer(np.diag(kernel), np.diag(kernel))) + 1e-12
    assert np.max(np.abs(Z @ Z.T - kernel) / scale) < error
    theirs = AdditiveChi2Sampler(sample_steps=samples).fit_transform(X.astype(float))
    np.testing.assert_allclose(Z, theirs, atol=1e-5)
    signs = np.tile(np.sign(SIGNED), 2 * samples - 1)
    np.testing.assert_allclose(applied(f"chi2:{samples}", SIGNED), signs * Z, atol=1e-6)


def test_two_samples_are_the_default() -> None:
    np.testing.assert_array_equal(applied("chi2", X), applied("chi2:2", X))


@pytest.mark.parametrize("names", ["power:0.4", "hellinger", "chi2", "chi2:1,power,hellinger,bias"])
def test_sparse_rows_are_mapped_as_dense_ones_and_stay_sparse(names: str) -> None:
    rows = csr_matrix(SIGNED)
    # An explicit zero is a zero.
    rows.data[3] = 0.0
    found = applied(names, rows)
    assert found.format == "csr"
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.toarray(), applied(names, rows.toarray()), atol=1e-6)


@pytest.mark.parametrize("names", ["power:0.4", "hellinger", "chi2:3,l2"])
def test_a_model_repeats_them(names: str) -> None:
    made = Transforms.fit(names.split(","), lambda: [X])
    again = Transforms.from_record(made.record(), made.arrays())
    np.testing.assert_array_equal(again.apply(SIGNED), made.apply(SIGNED))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("power:0", "above 0 and at most 1"),
        ("power:2", "above 0 and at most 1"),
        ("power:nan", "above 0 and at most 1"),
        ("power:half", "not 'half'"),
        ("hellinger:2", "hellinger takes no argument"),
        ("chi2:4", "1, 2 or 3 samples, as in chi2:2, not '4'"),
        ("chi2:many", "1, 2 or 3 samples"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(names: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        applied(names, X)
