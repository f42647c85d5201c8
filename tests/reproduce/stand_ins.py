"""Tiny files in the formats of the public data sets: enough to run every table, not to learn anything."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy import io, sparse

from tests.reproduce import sources


def _rng(name: str) -> np.random.Generator:
    return np.random.default_rng(list(name.encode()))


def _blobs(name: str, n: int, d: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    rng = _rng(name)
    y = np.arange(n) % m
    return rng.normal(size=(n, d)) + 2.0 * rng.normal(size=(m, d))[y], y


def _packed(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def letter(path: Path) -> None:
    X, y = _blobs("letter", sources.LETTER_ROWS, 16, 26)
    table = np.column_stack([y + 1, (10 * X).round()]).astype(int).tolist()
    _packed(path, "\n".join(" ".join(map(str, row)) for row in table))


def usps(path: Path) -> None:
    X, y = _blobs("usps", 2100, 256, 10)  # the table of multitask learning draws 200 of each class
    thousandths = np.clip(300 * X, -1000, 1000).astype(np.int16)
    np.savez(
        path, X_train=thousandths[:1500], y_train=y[:1500].astype(np.uint8), X_test=thousandths[1500:],
        y_test=y[1500:].astype(np.uint8),
    )  # fmt: skip


def mnist(path: Path) -> None:
    X, y = _blobs("mnist", 2100, 784, 10)
    half = slice(0, 1500) if path.name.startswith("train") else slice(1500, None)
    array = y[half].astype(np.uint8)
    if "images" in path.name:
        array = np.clip(128 + 40 * X[half], 0, 255).astype(np.uint8).reshape(-1, 28, 28)
    head = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">i4").tobytes()
    path.write_bytes(gzip.compress(head + array.tobytes(), mtime=0))


def news20(path: Path) -> None:
    X, y = _blobs("news20", 240, 60, 20)
    csr = sparse.csr_matrix(np.maximum(X, 0.0).round().astype(np.uint16))
    np.savez(
        path, data=csr.data, indices=csr.indices, indptr=csr.indptr, shape=np.array(csr.shape),
        y=y.astype(np.uint8),
    )  # fmt: skip


def silhouettes(pixels: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        X, y = _blobs("silhouettes", 300, pixels, 12)
        parts = {}
        for name, rows in (("train", slice(0, 150)), ("val", slice(150, 220)), ("test", slice(220, 300))):
            parts[f"{name}_data"] = (X[rows] > 0).astype(np.uint8)
            parts[f"{name}_labels"] = (y[rows] + 1).reshape(-1, 1)
        io.savemat(path, parts)

    return write


def target_table(name: str, d: int, m: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        X, y = _blobs(name, 90, d, m)
        head = "\t".join([*(f"A{j}" for j in range(d)), "target"])
        rows = ("\t".join([*(f"{x:.4f}" for x in row), str(c)]) for row, c in zip(X, y, strict=True))
        _packed(path, "\n".join([head, *rows]) + "\n")

    return write


def monks(path: Path) -> None:
    rng = _rng(path.name)
    rows = [",".join(map(str, [c % 2, *rng.integers(1, 5, 6)])) for c in range(40)]
    attributes = "\n".join(f"@attribute a{j} {{1,2,3,4}}" for j in range(7))
    path.write_text(f"@relation ' '\n\n{attributes}\n\n@data\n" + "\n".join(rows) + "\n")


def german(path: Path) -> None:
    X, y = _blobs("german", 80, 24, 2)
    rows = (" ".join([*(f"{int(10 * x):4d}" for x in row), str(c + 1)]) for row, c in zip(X, y, strict=True))
    _packed(path, " ".join(map(str, range(24))) + " Target\n" + "\n".join(rows) + "\n")


def keel(name: str, d: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        X, y = _blobs(name, 80, d, 2)
        rows = (
            ", ".join([*(f"{x:.3f}" for x in row), f"{2.0 * c - 1.0}"]) for row, c in zip(X, y, strict=True)
        )
        path.write_text(f"@relation {name}\n@attribute x real\n@data\nx,y,z\n" + "\n".join(rows) + "\n")

    return write


def housing(path: Path) -> None:
    X, y = _blobs("housing", 60, 13, 5)
    rows = (",".join([*(f"{x:.4f}" for x in row), f"{c + 1.5}"]) for row, c in zip(X, y, strict=True))
    _packed(path, ",".join(f"a{j}" for j in range(13)) + ",medv\n" + "\n".join(rows) + "\n")


def abalone(path: Path) -> None:
    X, y = _blobs("abalone", 60, 7, 6)
    rows = (",".join(["MFI"[c % 3], *(f"{x:.4f}" for x in row), str(c)]) for row, c in zip(X, y, strict=True))
    _packed(path, "\n".join(rows) + "\n")


def aloi(path: Path) -> None:
    _libsvm(path, *_blobs("aloi", 240, 128, 12))


def cpusmall(path: Path) -> None:
    _libsvm(path, *_blobs("cpusmall", 60, 12, 4))


def _libsvm(path: Path, X: np.ndarray, y: np.ndarray) -> None:
    rows = (
        " ".join([str(c), *(f"{j + 1}:{x:.4f}" for j, x in enumerate(row))])
        for row, c in zip(X, y, strict=True)
    )
    _packed(path, "\n".join(rows) + "\n")


def splice(path: Path) -> None:
    X, y = _blobs("splice", 90, 60, 3)
    codes = np.clip(X.round() + 1, 0, 3).astype(int)
    head = "\t".join([*(f"A{j}" for j in range(60)), "target"])
    rows = ("\t".join(map(str, [*row, c])) for row, c in zip(codes.tolist(), y.tolist(), strict=True))
    _packed(path, "\n".join([head, *rows]) + "\n")


def splice_libsvm(path: Path) -> None:
    X, y = _blobs("splice_libsvm", 60, 60, 2)
    rows = (f"{2 * c - 1} " + " ".join(f"{x:.4f}" for x in row) for row, c in zip(X, y, strict=True))
    _packed(path, "\n".join(rows) + "\n")


def toy(name: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        X, y = _blobs(name, 200, 2, 2)
        io.savemat(path, {"x": X, "y": (2 * y - 1).reshape(-1, 1).astype(np.int16), "bayes_error": 0.0})

    return write


def mulan(name: str, n: int, d: int, m: int) -> Callable[[Path], None]:
    """Write the ARFF file, sparse, or the XML file of its labels, whichever the path says."""

    def write(path: Path) -> None:
        labels = [f"label {j}" for j in range(m)]
        if path.suffix == ".xml":
            inner = "\n".join(f'<label name="{label}"></label>' for label in labels)
            path.write_text(f'<labels xmlns="http://mulan.sourceforge.net/labels">\n{inner}\n</labels>\n')
            return
        X, y = _blobs(path.name, n, d, m)
        Y = np.zeros((n, m), dtype=int)
        Y[np.arange(n), y] = Y[np.arange(n), (y + np.arange(n) // m) % m] = 1
        head = [f"@attribute f{j} numeric" for j in range(d)]
        head += [f"@attribute '{label}' {{0,1}}" for label in labels]
        rows = []
        for features, own in zip(X, Y, strict=True):
            entries = [f"{j} {x:.3f}" for j, x in enumerate(features) if j % 7 == 0]
            rows.append("{" + ", ".join([*entries, *(f"{d + j} 1" for j in np.flatnonzero(own))]) + "}")
        _packed(path, "\n".join([f"@relation {name}", *head, "@data", *rows]) + "\n")

    return write


WRITERS: dict[str, Callable[[Path], None]] = {
    "letter": letter,
    "aloi": aloi,
    "usps": usps,
    "optdigits": target_table("optdigits", 64, 10),
    "mnist": mnist,
    "news20": news20,
    "silhouettes28": silhouettes(784),
    "silhouettes16": silhouettes(256),
    "monks": monks,
    "australian": target_table("australian", 14, 2),
    "splice": splice,
    "splice_libsvm": splice_libsvm,
    "emotions": mulan("emotions", 40, 72, 6),
    "yeast": mulan("yeast", 60, 103, 14),
    "enron": mulan("enron", 60, 1001, 8),
    "bibtex": mulan("bibtex", 60, 1836, 8),
    "scene": mulan("scene", 40, 294, 6),
    "medical": mulan("medical", 40, 1449, 8),
    "corel5k": mulan("corel5k", 60, 499, 10),
    "spambase": target_table("spambase", 57, 2),
    "german": german,
    "titanic": keel("titanic", 3),
    "phoneme": keel("phoneme", 5),
    "madelon": target_table("madelon", 500, 2),
    "housing": housing,
    "abalone": abalone,
    "cpusmall": cpusmall,
    "toy_multimodal": toy("multimodal"),
    "toy_imbalanced": toy("imbalanced"),
}


def write_all(folder: Path) -> Path:
    for name, write in WRITERS.items():
        for file in sources.SOURCES[name].files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            write(folder / file)
    return folder
