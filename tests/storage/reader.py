"""Another reader, from storage/README.md alone: `python -m tests.storage.reader MODEL` prints P and D."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numcodecs import Zstd
from scipy.sparse import csr_array

from tests.storage.formulas import primal_and_dual, transformed


def read(path: Path) -> Any:
    return json.loads(path.read_bytes())


def sparse(indptr: Any, indices: Any, data: Any, columns: int) -> Any:
    return csr_array((data, indices, indptr), (len(indptr) - 1, columns)).toarray()


def dual_rows(path: Path) -> Any:
    with path.open("rb") as file:
        head = json.loads(file.readline())
        packed = [(kind, file.read(size)) for kind, size in head["arrays"]]
    values, *rest = [np.frombuffer(Zstd().decode(data) if data else b"", kind) for kind, data in packed]
    return sparse(np.cumsum([0, *values]), *rest, head["shape"][1]) if rest else values.reshape(head["shape"])


def training_rows(store: Path, dataset: str) -> tuple[Any, Any, Any, Any]:
    commit = read(store / f"commits/datasets/{int(dataset[1:5]):08d}.json")
    folder, d, m = store / commit["folder"], commit["d"], commit["m"]
    arrays = zarr.open_group(folder / "arrays", mode="r")
    features: list[Any] = [
        zarr.open(store / "units" / unit["features"]) for unit in read(folder / "units.json")
    ]
    if commit["layout"] == "csr":
        features = [
            sparse(*(part[name][:] for name in ("indptr", "indices", "data")), d) for part in features
        ]
    y, own = arrays["labels"][:], np.eye(m)
    if commit["label_sets"] is not None:
        labels = arrays["label_set_indices"][:]
        own = sparse(arrays["label_set_indptr"][:], labels, np.ones(len(labels)), m)
    w = arrays["weights"][:] if "weights" in arrays else np.ones(len(y))
    rows = (arrays["split"][:] == 0) & (y >= 0)
    X = np.concatenate([part[:] for part in features])[rows].astype(np.float32)
    return X, y[rows], own[y[rows]] > 0, w[rows]


def bounds(model: Path) -> tuple[float, float]:
    record = read(max(model.glob("0*.json")))
    arrays: Any = {path.parent.name: zarr.open(path.parent)[:] for path in model.glob("arrays/*/zarr.json")}
    X, y, own, w = training_rows(model.parents[1], record["dataset"])
    w = w * np.array(record["class_weights"] or np.ones(own.shape[1]))[y]
    duals = [dual_rows(path) for path in sorted(model.glob("arrays/duals/*"))]
    return primal_and_dual(record, arrays, transformed(X, record["transforms"], arrays), own, w, duals)


if __name__ == "__main__":
    print(*bounds(Path(sys.argv[1])))
