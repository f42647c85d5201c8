"""Fisher vectors: which way the local descriptors of an image pull a mixture of Gaussians over all.

The descriptors lie on a grid: gradients around a point, and colours around it.  Their principal components
and the mixture over these are the visual vocabulary.
"""

from __future__ import annotations

import base64
import hashlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from topline.pipeline.backbones.base import FeatureFunction, Features, IntegerOptions, resized
from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.images import Pixels
from topline.solvers.crew import one_blas_thread

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
            kind = {"covariance_type": "diag", "reg_covar": _SMALLEST_VARIANCE}
            options = {**kind, "random_state": seed, "max_iter": _ROUNDS}
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


LARGEST_SIDE = 512
# DAISY with two rings of six histograms of eight directions, and the one in the middle.
_RINGS, _HISTOGRAMS, _ORIENTATIONS = 2, 6, 8
GRADIENTS = (_RINGS * _HISTOGRAMS + 1) * _ORIENTATIONS
# Four by four cells, and of each the mean and the deviation of three colours.
_CELLS = 4
COLOURS = 2 * 3 * _CELLS**2
# So many descriptors of all sampled images together are kept to fit on.
_FITTED_ON = 50_000
_OF_ONE_IMAGE = 1000


@dataclass(frozen=True, eq=False)
class Fisher(IntegerOptions):
    """Improved Fisher vectors of dense descriptors of gradients (DAISY) and colours, by scikit-image.

    An image, resized to `size` x `size` pixels, gives a descriptor of the pixels up to `radius` away every
    `step` pixels; so do `scales` - 1 copies, each smaller by the square root of 2.  With colour = 0 they are
    of grey values alone.  Projected to `components` principal components and seen through `words` Gaussians
    they make words (2 components + 1) numbers of the image and of each of `stripes` horizontal stripes,
    square-rooted with signs and normalised.

    Components and Gaussians are fitted on the descriptors of `sample` images of `seed`, and are part of the
    specification.  Source: J. Sanchez et al., "Image classification with the Fisher vector", 2013; thesis,
    section 4.4.
    """

    name: ClassVar[str] = "fisher"

    size: int = 96
    step: int = 4
    radius: int = 12
    scales: int = 2
    words: int = 16
    components: int = 48
    stripes: int = 3
    colour: int = 1
    sample: int = 500
    seed: int = 0
    vocabulary: Vocabulary | None = field(default=None, repr=False)

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """Return the backbone that gave `spec`; `InputError` where its vocabulary is damaged."""
        plain = super().from_spec(spec)
        words = Vocabulary.from_dict(spec["vocabulary"], plain.components, plain.words, str(spec["sha256"]))
        if len(words.mean) != plain._numbers:
            raise InputError(
                f"the stored vocabulary is of descriptors of {len(words.mean)} numbers and these have"
                f" {plain._numbers}: extract the images again"
            )
        return replace(plain, vocabulary=words)

    def __post_init__(self) -> None:
        sides = self._sides
        if min(self.step, self.radius, self.scales, self.words, self.sample) < 1:
            raise ConfigError("fisher takes 1 or more for step, radius, scales, words and sample")
        if not 2 * self.radius < sides[-1] <= self.size <= LARGEST_SIDE:
            raise ConfigError(
                f"fisher has descriptors of radius {self.radius} in images of {sides[-1]} pixels at the least"
                f" of {self.scales} scales: twice the radius must fit, and size is at most {LARGEST_SIDE}"
            )
        if not 1 <= self.components <= self._numbers:
            raise ConfigError(f"fisher has 1 to {self._numbers} components, not {self.components}")
        rows = -(-(self.size - 2 * self.radius) // self.step)
        if self.stripes > rows:
            raise ConfigError(
                f"fisher has {rows} rows of descriptors, too few for {self.stripes} stripes: lower stripes"
            )

    @property
    def dim(self) -> int:
        """Number of features."""
        return (1 + self.stripes) * self.words * (2 * self.components + 1)

    @property
    def side(self) -> int:
        """Images are resized to this."""
        return self.size

    def spec(self) -> dict[str, Any]:
        """Return name, options, and the vocabulary with its digest."""
        words = self._words()
        return {**super().spec(), "sha256": words.sha256, "vocabulary": words.to_dict()}

    def open(self) -> FeatureFunction:
        """Return the function of images by the vocabulary; `InputError` without one."""
        words = self._words()

        def features(images: Sequence[Pixels]) -> Features:
            return np.stack([self._vector(words, image) for image in images])

        return features

    def fitted_as(self, spec: Mapping[str, Any]) -> Self | None:
        """Return the backbone with the vocabulary of `spec`; None where its options are not these."""
        same = all(spec.get(name) == value for name, value in super().spec().items())
        return self.from_spec(spec) if same else None

    def about(self) -> str:
        """Return what they are."""
        return "Fisher vectors of local descriptors, whose vocabulary was fitted on the store's own images"

    def fit(self, pictures: Iterable[Pixels]) -> Self:
        """Return the backbone with a vocabulary of `sample` pictures; raise `InputError` for too few."""
        random = np.random.default_rng(self.seed)
        sampled = zip(range(self.sample), pictures, strict=False)
        found = [self._some(random, picture) for _, picture in sampled]
        descriptors = np.concatenate([np.zeros((0, self._numbers), np.float32), *found])
        if len(descriptors) < max(self.words, 2):
            raise InputError(
                f"{len(found)} images have {len(descriptors)} descriptors, too few for {self.words} words:"
                " use more images, or lower words or step"
            )
        chosen = random.permutation(len(descriptors))[:_FITTED_ON]
        words = Vocabulary.fit(descriptors[chosen], self.components, self.words, self.seed)
        return replace(self, vocabulary=words)

    @property
    def _numbers(self) -> int:
        """Numbers of a descriptor."""
        return GRADIENTS + COLOURS * bool(self.colour)

    @property
    def _sides(self) -> list[int]:
        return [round(self.size / 2.0 ** (scale / 2)) for scale in range(max(self.scales, 1))]

    def _words(self) -> Vocabulary:
        if self.vocabulary is None:
            raise InputError("fisher has no vocabulary yet: let `topline extract` fit it on the images")
        return self.vocabulary

    def _some(self, random: np.random.Generator, picture: Pixels) -> NDArray[np.float32]:
        """Return descriptors of a picture, a random choice where there are very many."""
        found = np.concatenate([grid.reshape(-1, self._numbers) for grid in self._grids(picture)])
        return found[random.permutation(len(found))[:_OF_ONE_IMAGE]].astype(np.float32)

    def _grids(self, image: Pixels) -> list[NDArray[np.float64]]:
        """Return descriptors of each scale, (rows, columns, numbers of one)."""
        grids = []
        for side in self._sides:
            small = min(image.shape[:2]) < side
            filter_ = Image.Resampling.BICUBIC if small else Image.Resampling.BILINEAR
            scaled = resized(image, side, side, filter_)
            grid = gradient_grid(scaled, self.step, self.radius)
            if self.colour:
                grid = np.concatenate([grid, colour_grid(scaled, self.step, self.radius)], axis=2)
            grids.append(grid)
        return grids

    def _vector(self, words: Vocabulary, image: Pixels) -> NDArray[np.float32]:
        """Return the Fisher vectors (dim,) of the whole image and of its stripes, one after the other."""
        import skimage.feature

        fisher_vector: Any = skimage.feature.fisher_vector

        grids = [words.project(grid) for grid in self._grids(image)]
        stripes = [np.array_split(grid, max(self.stripes, 1)) for grid in grids]
        regions = [grids, *([parts[place] for parts in stripes] for place in range(self.stripes))]
        vectors = []
        for region in regions:
            descriptors = np.concatenate([part.reshape(-1, self.components) for part in region])
            vector = fisher_vector(descriptors, words.mixture)
            vector = np.sign(vector) * np.sqrt(np.abs(vector))
            vectors.append(vector / max(float(np.linalg.norm(vector)), np.finfo(np.float64).tiny))
        return np.concatenate(vectors).astype(np.float32)


def gradient_grid(image: Image.Image, step: int, radius: int) -> NDArray[np.float64]:
    """Return DAISY descriptors of length 1 (rows, columns, 104) of the grey values at every `step`-th pixel.

    Source: E. Tola, V. Lepetit, P. Fua, "DAISY: an efficient dense descriptor applied to wide-baseline
    stereo", 2010; by scikit-image.
    """
    import skimage.feature

    daisy: Any = skimage.feature.daisy
    grey = np.asarray(image.convert("L"), dtype=np.float64) / 255.0
    return np.asarray(daisy(grey, step, radius, _RINGS, _HISTOGRAMS, _ORIENTATIONS, normalization="l2"))


def colour_grid(image: Image.Image, step: int, radius: int) -> NDArray[np.float64]:
    """Return local colour statistics of length 1 (rows, columns, 96) around the same pixels.

    They are the square roots of means and standard deviations of red, green and blue in 4 x 4 cells of a
    patch of 2 radius pixels.  Source: S. Clinchant et al., "XRCE's participation to ImagEval", 2007; thesis,
    sections 4.4.1 and 4.4.2.
    """
    pixels = np.asarray(image, dtype=np.int64)
    width = max(1, 2 * radius // _CELLS)
    area = width**2
    # Whole numbers, so that a black cell has exactly nothing.
    sums, squares = _box_sums(pixels, width), _box_sums(pixels**2, width)
    statistics = np.concatenate([sums, np.sqrt(area * squares - sums**2)], axis=2) / (255.0 * area)
    corners = [round(2 * radius * cell / _CELLS) for cell in range(_CELLS)]
    height, breadth = pixels.shape[0] - 2 * radius, pixels.shape[1] - 2 * radius
    cells = [
        statistics[down : down + height : step, right : right + breadth : step]
        for down in corners
        for right in corners
    ]
    rooted: NDArray[np.float64] = np.sqrt(np.concatenate(cells, axis=2))
    norms = np.linalg.norm(rooted, axis=2, keepdims=True)
    return np.asarray(np.divide(rooted, norms, out=np.zeros_like(rooted), where=norms > 0.0))


def _box_sums(values: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """Return sums over squares of `width` pixels by upper left corner; (h - width + 1, w - width + 1, c)."""
    total = np.zeros((values.shape[0] + 1, values.shape[1] + 1, values.shape[2]), dtype=np.int64)
    total[1:, 1:] = values.cumsum(axis=0).cumsum(axis=1)
    return total[width:, width:] - total[:-width, width:] - total[width:, :-width] + total[:-width, :-width]
