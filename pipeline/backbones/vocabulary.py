"""A visual vocabulary: principal components of local descriptors, and a mixture of Gaussians over them."""

from __future__ import annotations

import base64
import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.errors import InputError
from topline.solvers.blas_threads import one_blas_thread

Float32Array = NDArray[np.float32]

# Of the mean variance: a Gaussian that is narrower would be about a few descriptors alone.
_SMALLEST_VARIANCE = 1e-3
_ROUNDS = 60


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What turns descriptors (r, R) into words; all arrays are float32.

    Attributes
    ----------
    mean, axes : (R,) and (R, D): z = (x - mean) @ axes are the leading D principal components, on a common
        scale that makes their mean variance 1.
    shares : (K,) weights of the Gaussians, which sum to 1.
    centres, variances : (K, D) of the Gaussians, whose covariances are diagonal.
    """

    mean: Float32Array
    axes: Float32Array
    shares: Float32Array
    centres: Float32Array
    variances: Float32Array

    @classmethod
    def fit(cls, descriptors: NDArray[Any], dim: int, words: int, seed: int) -> Self:
        """Return the vocabulary fitted on descriptors (r, R); it follows from them and the seed.

        Source: F. Perronnin, J. Sanchez, T. Mensink, "Improving the Fisher kernel for large-scale image
        classification", 2010; the mixture by scikit-image's `learn_gmm`.
        """
        import skimage.feature
        from sklearn.exceptions import ConvergenceWarning

        learn_gmm: Any = skimage.feature.learn_gmm
        values = np.asarray(descriptors, dtype=np.float64)
        # Sums on several threads come in an order of their own.
        with one_blas_thread(), warnings.catch_warnings():
            # A mixture that is not at its likeliest is a vocabulary all the same.
            warnings.simplefilter("ignore", ConvergenceWarning)
            mean = values.mean(axis=0)
            spectrum, axes = np.linalg.eigh(np.cov(values.T, ddof=0))
            axes = axes[:, ::-1][:, :dim]
            axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(dim)])
            scale = float(np.maximum(spectrum[::-1][:dim], 0.0).mean())
            axes = axes / np.sqrt(scale if scale > 0.0 else 1.0)
            options = {
                "covariance_type": "diag",
                "random_state": seed,
                "max_iter": _ROUNDS,
                "reg_covar": _SMALLEST_VARIANCE,
            }
            mixture = learn_gmm((values - mean) @ axes, n_modes=words, gm_args=options)
        arrays = (mean, axes, mixture.weights_, mixture.means_, mixture.covariances_)
        return cls(*(np.ascontiguousarray(array, dtype=np.float32) for array in arrays))

    def project(self, descriptors: NDArray[Any]) -> NDArray[np.float64]:
        """Return the components z (r, D) of descriptors (r, R)."""
        return np.asarray((descriptors - self.mean.astype(np.float64)) @ self.axes.astype(np.float64))

    @cached_property
    def mixture(self) -> Any:
        """The Gaussians as scikit-image's `fisher_vector` takes them."""
        from sklearn.mixture import GaussianMixture

        mixture = GaussianMixture(n_components=len(self.shares), covariance_type="diag")
        shares = self.shares.astype(np.float64)
        mixture.weights_ = shares / shares.sum()
        mixture.means_ = self.centres.astype(np.float64)
        mixture.covariances_ = self.variances.astype(np.float64)
        mixture.precisions_cholesky_ = 1.0 / np.sqrt(mixture.covariances_)
        return mixture

    @cached_property
    def sha256(self) -> str:
        """Digest of all arrays and their shapes."""
        total = hashlib.sha256()
        for name, array in self._arrays().items():
            total.update(f"{name}{array.shape}".encode())
            total.update(array.astype("<f4").tobytes())
        return total.hexdigest()

    def to_dict(self) -> dict[str, str]:
        """Return the arrays as text: little-endian float32 in base64."""
        return {
            name: base64.b64encode(array.astype("<f4").tobytes()).decode("ascii")
            for name, array in self._arrays().items()
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, str], dim: int, words: int, sha256: str) -> Self:
        """Return what `to_dict` wrote; `InputError` where its digest or sizes are not these."""
        shapes = {"mean": (-1,), "axes": (-1, dim), "shares": (words,), "centres": (words, dim)}
        shapes["variances"] = shapes["centres"]
        try:
            arrays = {
                name: np.frombuffer(base64.b64decode(record[name], validate=True), "<f4")
                .reshape(shape)
                .astype(np.float32)
                for name, shape in shapes.items()
            }
            found = cls(**arrays)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"the stored vocabulary is not one of {words} words in {dim} dimensions ({error}): extract"
                " the images again"
            ) from error
        if found.sha256 != sha256:
            raise InputError(
                f"the stored vocabulary has the SHA-256 {found.sha256[:12]} and not {sha256[:12]}, as its"
                " record says: it is damaged, so extract the images again"
            )
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Travel as arrays alone."""
        return self._arrays()

    def _arrays(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}
