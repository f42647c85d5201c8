"""Data of the benchmarks: scikit-learn's own, the public files beside the checkout, and a synthetic set."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import io, sparse
from sklearn.datasets import load_digits
from sklearn.preprocessing import StandardScaler, normalize

#: Where the public files lie unless said otherwise: beside the checkout.
DATA_DIR = Path(__file__).resolve().parents[3] / "shared" / "data"

#: Rows that a quick run takes of a set.
QUICK_ROWS = 400


@dataclass(frozen=True, eq=False)
class DataSet:
    """Features (n, d) in float32, dense or CSR, and labels from 0."""

    name: str
    X: Any
    y: np.ndarray[Any, Any]

    @property
    def m(self) -> int:
        """Number of classes."""
        return int(self.y.max()) + 1

    @property
    def wide(self) -> bool:
        """Whether it is dense with d >= 256: frozen features of images."""
        return not sparse.issparse(self.X) and self.X.shape[1] >= 256

    def shuffled(self) -> DataSet:
        """Return the rows in an order of their own, always the same."""
        order = np.random.default_rng(0).permutation(len(self.y))
        return DataSet(self.name, self.X[order], self.y[order])

    def first(self, rows: int | None) -> DataSet:
        """Return so many rows, all where that is None."""
        return DataSet(self.name, self.X[:rows], self.y[:rows])

    @property
    def title(self) -> str:
        """Name and sizes."""
        kind = "sparse" if sparse.issparse(self.X) else "dense"
        n, d = self.X.shape
        return f"{self.name}: n {n}, d {d}, m {self.m}, {kind}"


def load(name: str, folder: Path, *, quick: bool = False) -> DataSet:
    """Give a set by its name, standardised with "/z" behind it; FileNotFoundError without its file.

    A quick run takes a few hundred rows, at random because files may be ordered by class.
    """
    base, _, how = name.partition("/")
    X, y = SETS[base](folder)
    if how:
        X = X if sparse.issparse(X) else np.asarray(X, np.float64)
        X = StandardScaler(with_mean=not sparse.issparse(X)).fit_transform(X)
    if quick and len(y) > QUICK_ROWS:
        rows = np.sort(np.random.default_rng(0).permutation(len(y))[:QUICK_ROWS])
        X, y = X[rows], y[rows]
    X = X.tocsr().astype(np.float32) if sparse.issparse(X) else np.ascontiguousarray(X, dtype=np.float32)
    return DataSet(name, X, np.unique(y, return_inverse=True)[1].astype(np.int32))


def digits(_folder: Path) -> tuple[Any, Any]:
    """Read the 8 x 8 digits of scikit-learn, from 0 to 1."""
    X, y = load_digits(return_X_y=True)
    return X / 16.0, y


def letter_all(folder: Path) -> tuple[Any, Any]:
    """Read all 20,000 rows of letter.scale."""
    with gzip.open(folder / "letter" / "letter_libsvm_20000.txt.gz", "rt") as lines:
        table = np.loadtxt(lines)
    return table[:, 1:], table[:, 0]


def letter(folder: Path) -> tuple[Any, Any]:
    """Read the 15,000 training rows of letter.scale."""
    with gzip.open(folder / "letter" / "letter_libsvm_20000.txt.gz", "rt") as lines:
        table = np.loadtxt(lines, max_rows=15000)
    return table[:, 1:], table[:, 0]


def usps(folder: Path) -> tuple[Any, Any]:
    """Read the training digits of USPS, from -1 to 1."""
    with np.load(folder / "usps" / "usps.npz") as parts:
        return parts["X_train"] / 1000.0, parts["y_train"]


def satimage(folder: Path) -> tuple[Any, Any]:
    """Read the 4,435 training rows of satimage, from 0 to 1."""
    with gzip.open(folder / "satimage" / "sat_train.txt.gz", "rt") as lines:
        table = np.loadtxt(lines)
    return table[:, :-1] / 255.0, table[:, -1]


def optdigits(folder: Path) -> tuple[Any, Any]:
    """Read all 5,620 rows of optdigits, from 0 to 1."""
    with gzip.open(folder / "optdigits" / "optdigits.tsv.gz", "rt") as lines:
        table = np.loadtxt(lines, skiprows=1)
    return table[:, :-1] / 16.0, table[:, -1]


def coil20(folder: Path) -> tuple[Any, Any]:
    """Read the 20 objects of COIL, pixels from 0 to 1."""
    table = io.loadmat(folder / "coil20" / "COIL20.mat")
    return table["X"], table["Y"].ravel()


def news20(folder: Path) -> tuple[Any, Any]:
    """Read word counts of 20 newsgroups, rows of unit norm."""
    with np.load(folder / "news20_counts" / "news20_counts.npz") as parts:
        csr = (parts["data"].astype(np.float64), parts["indices"], parts["indptr"])
        return normalize(sparse.csr_matrix(csr, shape=tuple(parts["shape"]))), parts["y"]


def googlenet(folder: Path) -> tuple[Any, Any]:
    """Read the GoogLeNet features of Office-Caltech's amazon, as they are: norms about 41."""
    table = io.loadmat(folder / "office_caltech" / "GoogleNet1024_amazon.mat")
    return table["fts"], table["labels"].ravel()


def relu_features(n: int, d: int, m: int, _folder: Path | None = None) -> tuple[Any, Any]:
    """Make rows of unit norm like those behind a ReLU: half of them zeros, classes that mostly come apart."""
    rng = np.random.default_rng(0)
    centres = 0.15 * rng.standard_normal((m, d), dtype=np.float32)
    y = rng.integers(m, size=n)
    X = rng.standard_normal((n, d), dtype=np.float32)
    X += centres[y]
    np.maximum(X, 0.0, out=X)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, y


SETS: Mapping[str, Callable[[Path], tuple[Any, Any]]] = MappingProxyType(
    {
        "digits": digits,
        "letter": letter,
        "letter_all": letter_all,
        "usps": usps,
        "satimage": satimage,
        "optdigits": optdigits,
        "coil20": coil20,
        "news20": news20,
        "googlenet": googlenet,
        "synthetic": partial(relu_features, 20_000, 1024, 100),
        "relu256": partial(relu_features, 100_000, 256, 100),
        "relu64": partial(relu_features, 200_000, 64, 20),
        "relu2048": partial(relu_features, 10_000, 2048, 1000),
        "relu4096": partial(relu_features, 5_000, 4096, 200),
    }
)
