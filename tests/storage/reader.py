"""Another reader of stores, written from storage/README.md alone: python tests/storage/reader.py MODEL.

It prints P and D of a model.  Transforms, losses and the kernel are those of the models that its test stores.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numcodecs import Zstd
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist

#: What a transform makes of rows, with its arrays by name.
TRANSFORMS: dict[str, Any] = {
    "l2": lambda X, fitted: X / np.linalg.norm(X, axis=1, keepdims=True).clip(1e-30),
    "bias": lambda X, fitted: np.hstack([X, np.ones((len(X), 1))]),
    "standardize": lambda X, fitted: (X - fitted("mean")) * fitted("scale"),
    "pca": lambda X, fitted: (X - fitted("mean")) @ fitted("components"),
}
#: Phi of scores and -Phi*(-u), with the own classes of each row in boolean.
LOSSES: dict[str, Any] = {
    "topk_hinge": (
        lambda s, own, k: np.sort(s + ~own - (s * own).sum(-1, keepdims=True))[..., -k:].mean(-1).clip(0),
        lambda u, own: -(u * ~own).sum(-1),
    ),
    "softmax": (
        lambda s, own, k: np.log(np.exp(s).sum(-1)) - (s * own).sum(-1),
        lambda u, own: entropy(own - u),
    ),
    "one_vs_all_logistic": (
        lambda s, own, k: np.log1p(np.exp(np.where(own, -s, s))).sum(-1),
        lambda u, own: entropy(abs(u)) + entropy(1 - abs(u)),
    ),
}


def entropy(q: Any) -> Any:
    return -(q * np.log(q.clip(1e-300))).sum(-1)


def read(path: Path) -> Any:
    return json.loads(path.read_bytes())


def sparse(indptr: Any, indices: Any, data: Any, columns: int) -> Any:
    return csr_array((data.astype(float), indices, indptr), (len(indptr) - 1, columns)).toarray()


def features(unit: Path, d: int) -> Any:
    found: Any = zarr.open(unit, mode="r")
    if isinstance(found, zarr.Array):
        return found[:]
    return sparse(found["indptr"][:], found["indices"][:], found["data"][:], d)


def training_rows(store: Path, dataset: str) -> tuple[Any, Any, Any, Any]:
    """Features, labels, own classes and own weights of the rows that a model learns from."""
    commit = read(store / f"commits/datasets/{int(dataset[1:5]):08d}.json")
    units, arrays = (
        read(store / commit["folder"] / "units.json"),
        zarr.open_group(store / commit["folder"] / "arrays"),
    )
    X = np.concatenate([features(store / "units" / unit["features"], commit["d"]) for unit in units])
    y, own = arrays["labels"][:], np.eye(commit["m"])
    if "label_set_indptr" in arrays:
        indptr, indices = arrays["label_set_indptr"][:], arrays["label_set_indices"][:]
        own = sparse(indptr, indices, np.ones(len(indices)), commit["m"])
    w = arrays["weights"][:] if "weights" in arrays else np.ones(len(y))
    rows = (arrays["split"][:] == 0) & (y >= 0)
    return X[rows].astype(np.float32), y[rows], own[y[rows]] > 0, w[rows]


def dual_rows(path: Path) -> Any:
    """The block of A in a file."""
    line, _, data = path.read_bytes().partition(b"\n")
    head, arrays = json.loads(line), []
    for kind, size in head["arrays"]:
        arrays.append(np.frombuffer(Zstd().decode(data[:size]) if size else b"", kind))
        data = data[size:]
    if len(arrays) == 1:
        return arrays[0].reshape(head["shape"]).astype(float)
    return sparse(np.append(0, np.cumsum(arrays[0])), arrays[1], arrays[2], head["shape"][1])


def bounds(model: Path) -> tuple[float, float]:
    """P and D of the model in a folder of a store."""
    record, arrays = read(max(model.glob("0*.json"))), zarr.open_group(model / "arrays", mode="r")
    lam, (phi, conjugate) = record["lam"], LOSSES[record["loss"]["name"]]
    losses = partial(phi, k=record["loss"].get("k", 1))
    X, y, own, w = training_rows(model.parents[1], record["dataset"])
    w = w if record["class_weights"] is None else w * np.array(record["class_weights"])[y]
    for place, one in enumerate(record["transforms"]):
        fitted = lambda part, place=place: arrays[f"transform.{place}.{part}"][:]  # noqa: E731
        X = TRANSFORMS[one["name"].partition(":")[0]](X, fitted).astype(np.float32)
    X = X.astype(float)
    if record["kernel"] is not None:
        values, vectors = np.linalg.eigh(np.exp(-record["kernel"]["gamma"] * cdist(X, X, "sqeuclidean")))
        X = vectors * np.sqrt(values.clip(0))  # rows whose inner products are K

    def shares(W: Any) -> Any:
        """The weights p of the rows: of the largest losses alone where the mean of those is minimised."""
        k, found = record["config"]["average_top"], np.zeros(len(X))
        if k is None:
            return w / len(X)
        k = k if k >= 1 else k * len(X)
        found[np.argsort(-losses(X @ W, own), kind="stable")] = (k - np.arange(len(X))).clip(0, 1) / k
        return found

    def directions(W: Any) -> Any:
        """Minus the gradients of the losses: central differences, which are exact on a linear piece."""
        s, steps = (X @ W)[:, None], 1e-6 * np.eye(own.shape[1])
        return (losses(s - steps, own[:, None]) - losses(s + steps, own[:, None])) / 2e-6

    duals = sorted(model.glob("arrays/duals/*"))
    A = np.concatenate([dual_rows(path) for path in duals]) if duals else None
    W = X.T @ A / (lam * len(X)) if A is not None and record["kernel"] else arrays["W"][:].astype(float)
    primal = lam / 2 * (W**2).sum() + shares(W) @ losses(X @ W, own)
    if A is None and "dual_sums" in arrays:
        V = arrays["dual_W"][:] if "dual_W" in arrays else W
        return primal, arrays["dual_sums"][0] - lam / 2 * (V**2).sum()
    if A is not None:
        parts = [(w / len(X), A / w[:, None])]
    elif "cut_points" in arrays:
        points = zip(arrays["cut_shares"][:], arrays["cut_points"][:], strict=True)
        parts = [(share * shares(point), directions(point)) for share, point in points]
    else:
        parts = [(shares(W), directions(W))]
    V = sum(X.T @ (weights[:, None] * u) for weights, u in parts) / lam
    return primal, sum(weights @ conjugate(u, own) for weights, u in parts) - lam / 2 * (V**2).sum()


if __name__ == "__main__":
    print(*bounds(Path(sys.argv[1])))
