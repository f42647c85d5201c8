"""Rows with several labels: every format gives the same sets, and what is wrong with one is named."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

from topline.pipeline.errors import ConfigError, InputError
from topline.pipeline.ingest import ImportResult, import_features
from topline.pipeline.options.ingest import ImportConfig
from topline.pipeline.readers import open_features, read_label_names
from topline.pipeline.readers.texts import read_header
from topline.storage.datasets import Dataset, check_dataset
from topline.storage.schema import SPLITS
from topline.storage.stores import open_store

N, D, M = 40, 5, 4
NAMES = ("happy", "sad, lonely", "it's", "q x")

Array = np.ndarray[Any, Any]


def data() -> tuple[Array, Array]:
    """Features in halves, which every text format writes exactly, and an indicator with an empty row."""
    rng = np.random.default_rng(3)
    X = np.round(rng.normal(size=(N, D)) * 2).astype(np.float32) / 2
    Y = rng.random((N, M)) < 0.4
    Y[0], Y[1] = False, True
    return X, Y


def place(tmp_path: Path) -> str:
    """A store in memory, for waiting for a disk shows these tests nothing."""
    return f"memory://label-sets-{tmp_path.name}"


def run(tmp_path: Path, features: Path, **options: Any) -> ImportResult:
    return import_features(ImportConfig(features=str(features), store=place(tmp_path), **options))


def opened(tmp_path: Path, result: ImportResult) -> Dataset:
    return Dataset.open(open_store(place(tmp_path)), result.dataset)


def content(dataset: Dataset) -> tuple[Array, list[set[str]]]:
    """Features, and the names of the labels of each row."""
    rows, table = dataset.rows(0, dataset.info.n_rows), dataset.label_sets()
    assert table is not None
    sets = [{dataset.class_names[label] for label in labels.tolist()} for labels in table]
    X = rows.toarray() if sparse.issparse(rows) else np.asarray(rows)
    return X, [sets[code] for code in dataset.labels().tolist()]


def quoted(name: str) -> str:
    return "'" + name.replace("'", "\\'") + "'"


def arff(X: Array, Y: Array, *, layout: str = "dense", relation: str = "r") -> str:
    """Labels stand before the features, so that their places differ."""
    lines = [f"@RELATION {relation}", "% a comment", ""]
    lines += [f"@attribute {quoted(name)} {{0,1}}" for name in NAMES]
    lines += [f"@attribute 'f {j}' numeric" for j in range(D)]
    lines += ["@data", "% another"]
    for row in np.concatenate([Y.astype(float), X], axis=1):
        if layout == "dense":
            lines.append(",".join(f"{value:g}" for value in row))
        else:
            lines.append("{" + ", ".join(f"{j} {row[j]:g}" for j in np.flatnonzero(row)) + "}")
    return "\n".join(lines) + "\n"


def mulan(path: Path) -> Path:
    labels = "".join(f'<label name="{name}"></label>' for name in NAMES)
    path.write_text(f'<?xml version="1.0"?><labels xmlns="http://mulan">{labels}</labels>', encoding="utf-8")
    return path


def libsvm_text(X: Array, Y: Array) -> str:
    lines = []
    for row, labels in zip(X, Y, strict=True):
        pairs = " ".join(f"{j + 1}:{row[j]:g}" for j in np.flatnonzero(row))
        lines.append(f"{','.join(map(str, np.flatnonzero(labels)))} {pairs}")
    return "\n".join(lines) + "\n"


def named(path: Path) -> Path:
    path.write_text("\n".join(NAMES), encoding="utf-8")
    return path


def from_npz(folder: Path, X: Array, Y: Array) -> Mapping[str, Any]:
    np.savez(folder / "f.npz", X=X, Y=Y)
    return {"features": folder / "f.npz"}


def from_npy(folder: Path, X: Array, Y: Array) -> Mapping[str, Any]:
    np.save(folder / "f.npy", X)
    np.save(folder / "y.npy", Y.astype(np.float64))
    return {"features": folder / "f.npy", "labels": folder / "y.npy"}


def from_sparse_indicator(folder: Path, X: Array, Y: Array) -> Mapping[str, Any]:
    np.save(folder / "f.npy", X)
    sparse.save_npz(folder / "y.npz", sparse.csr_matrix(Y.astype(np.int8)))
    return {"features": folder / "f.npy", "labels": folder / "y.npz"}


def from_hdf5(folder: Path, X: Array, Y: Array) -> Mapping[str, Any]:
    with h5py.File(folder / "f.h5", "w") as file:
        file["X"], file["Y"] = X, Y.astype(np.int8)
    return {"features": folder / "f.h5"}


def from_lists(folder: Path, X: Array, Y: Array) -> Mapping[str, Any]:
    lists = pa.array([np.flatnonzero(row).tolist() for row in Y], pa.list_(pa.int64()))
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), D)
    pq.write_table(pa.table({"labels": lists, "embedding": vectors}), folder / "f.parquet")
    return {"features": folder / "f.parquet"}


def from_libsvm(folder: Path, X: Array, Y: Array) -> Mapping[str, Any]:
    (folder / "f.svm").write_text(libsvm_text(X, Y), encoding="utf-8")
    return {"features": folder / "f.svm"}


def from_repository(folder: Path, X: Array, Y: Array) -> Mapping[str, Any]:
    """The Extreme Classification Repository: a line of sizes, and columns from 0."""
    lines = libsvm_text(np.roll(np.pad(X, ((0, 0), (1, 0))), -1, axis=1)[:, :D], Y).splitlines()
    shifted = [" ".join(_one_less(word) for word in line.split(" ")) for line in lines]
    (folder / "f.txt").write_text("\n".join([f"{N} {D} {M}", *shifted]), encoding="utf-8")
    return {"features": folder / "f.txt"}


def _one_less(word: str) -> str:
    column, colon, value = word.partition(":")
    return f"{int(column) - 1}:{value}" if colon else word


def from_words(folder: Path, X: Array, Y: Array) -> Mapping[str, Any]:
    np.save(folder / "f.npy", X)
    cells = ["; ".join(NAMES[j] for j in np.flatnonzero(row)) for row in Y]
    (folder / "y.csv").write_text("label\n" + "".join(f'"{cell}"\n' for cell in cells), encoding="utf-8")
    return {"features": folder / "f.npy", "labels": folder / "y.csv", "label_separator": ";"}


def from_arff(folder: Path, X: Array, Y: Array) -> Mapping[str, Any]:
    (folder / "f.arff").write_text(arff(X, Y), encoding="utf-8")
    return {"features": folder / "f.arff", "labels": mulan(folder / "f.xml")}


def from_sparse_arff(folder: Path, X: Array, Y: Array) -> Mapping[str, Any]:
    (folder / "f.arff.gz").write_bytes(gzip.compress(arff(X, Y, layout="sparse").encode()))
    return {"features": folder / "f.arff.gz", "labels": mulan(folder / "f.xml")}


def from_meka(folder: Path, X: Array, Y: Array) -> Mapping[str, Any]:
    (folder / "f.arff").write_text(arff(X, Y, relation=f"'music: -C {M}'"), encoding="utf-8")
    return {"features": folder / "f.arff"}


FORMATS: list[Callable[[Path, Array, Array], Mapping[str, Any]]] = [
    from_npz, from_npy, from_sparse_indicator, from_hdf5, from_lists, from_libsvm, from_repository,
    from_words, from_arff, from_sparse_arff, from_meka,
]  # fmt: skip


@pytest.mark.parametrize("write", FORMATS, ids=lambda write: write.__name__)
def test_every_format_gives_the_same_label_sets(
    tmp_path: Path, write: Callable[[Path, Array, Array], Mapping[str, Any]]
) -> None:
    X, Y = data()
    result = run(tmp_path, **write(tmp_path, X, Y), class_names=named(tmp_path / "names.txt"))
    dataset = opened(tmp_path, result)
    found, labels = content(dataset)
    assert found.tolist() == X.tolist()
    assert labels == [{NAMES[j] for j in np.flatnonzero(row)} for row in Y]
    assert dataset.class_names == NAMES
    assert result.label_sets == len({row.tobytes() for row in Y}) == dataset.info.label_sets
    assert check_dataset(dataset, deep=True) == []


def test_names_come_from_the_file_or_are_the_numbers(tmp_path: Path) -> None:
    X, Y = data()
    for write, names in (
        (from_arff, NAMES),
        (from_npz, ("0", "1", "2", "3")),
        (from_libsvm, ("0", "1", "2", "3")),
    ):
        folder = tmp_path / write.__name__
        folder.mkdir()
        assert opened(tmp_path, run(tmp_path, **write(folder, X, Y))).class_names == names


def test_a_share_of_all_rows_is_held_out(tmp_path: Path) -> None:
    X, Y = data()
    result = run(tmp_path, **from_npz(tmp_path, X, Y), test_share=0.25)
    assert result.counts == {"train": 30, "val": 0, "test": 10, "rejected": 0}
    again = run(tmp_path, **from_npz(tmp_path, X, Y), test_share=0.25, split_seed=1)
    splits = [opened(tmp_path, found).split().tolist() for found in (result, again)]
    assert splits[0] != splits[1]


def test_splits_may_be_given(tmp_path: Path) -> None:
    X, Y = data()
    (tmp_path / "split.txt").write_text("test\n" + "val\n" + "train\n" * (N - 2), encoding="utf-8")
    result = run(tmp_path, **from_npz(tmp_path, X, Y), split=tmp_path / "split.txt")
    assert opened(tmp_path, result).split().tolist()[:3] == [SPLITS["test"], SPLITS["val"], SPLITS["train"]]


def test_the_separator_makes_another_dataset(tmp_path: Path) -> None:
    X, Y = data()
    options = dict(from_words(tmp_path, X, Y))
    assert run(tmp_path, **options).label_sets is not None
    again = run(tmp_path, **options)
    assert again.reused
    (tmp_path / "y.csv").write_text("label\n" + "a;b\n" * (N - 1) + "c\n", encoding="utf-8")
    del options["label_separator"]
    assert run(tmp_path, **options).label_sets is None


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            lambda Y: Y * 2.0,
            {},
            r"y.npy has a number that is neither 0 nor 1 in .* labels in rows 1 \(2\.0\).*: give 1",
        ),
        (lambda Y: Y.astype(str), {}, "y.npy has a matrix of <U5 for labels"),
        (lambda Y: Y[:, :, None], {}, r"y.npy has labels of shape \(40, 4, 1\)"),
        (lambda Y: Y[:-1], {}, "y.npy has 39 labels for the 40 rows"),
        (
            lambda Y: Y[:, :3],
            {"class_names": "names.txt"},
            "y.npy has 3 columns of labels, and 4 class names",
        ),
    ],
)
def test_an_indicator_that_is_none_is_refused(
    tmp_path: Path, change: Callable[[Array], Array], options: dict[str, str], message: str
) -> None:
    X, Y = data()
    given = dict(from_npy(tmp_path, X, Y))
    np.save(tmp_path / "y.npy", change(Y))
    named(tmp_path / "names.txt")
    with pytest.raises(InputError, match=message):
        run(tmp_path, **given, **{name: tmp_path / value for name, value in options.items()})


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["a;a"], "has a label twice in row 1"),
        (["a;;b"], "has no label in row 1"),
        (["-3;a"], r"has a negative label in row 1 \(-3\)"),
        (["a;zebra", "zebra"], r"has a label out of range in row 1 \(zebra\): give 0..1 or names"),
    ],
)
def test_labels_that_are_wrong_are_named(tmp_path: Path, cells: list[str], message: str) -> None:
    np.save(tmp_path / "f.npy", data()[0])
    lines = ["a;b", *cells, *["b"] * (N - 1 - len(cells))]
    (tmp_path / "y.txt").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "names.txt").write_text("a\nb\n", encoding="utf-8")
    names = {"class_names": tmp_path / "names.txt"} if "names" in message else {}
    with pytest.raises(InputError, match=message):
        run(tmp_path, tmp_path / "f.npy", labels=tmp_path / "y.txt", label_separator=";", **names)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0,1,0,2,1,1,1,1,1", "line 14: the label 'q x' is neither 0 nor 1"),
        ("0,1,0,1,1,1,1,1", "line 14: it has 8 values for 9 attributes"),
        ("0,1,0,1,?,1,1,1,1", r"line 14: a value is missing \(\?\)"),
        ("0,?,0,1,1,1,1,1,1", r"line 14: a value is missing \(\?\)"),
        ("0,1,0,1,x,1,1,1,1", "line 14: a value is not a number"),
        ("{0 1, 9 1}", "line 14: '9 1' is not INDEX VALUE with an index below 9"),
        ("{5 1, 4 1}", "line 14: its indices do not rise"),
        ("{5 1}, {2}", "line 14: a sparse row is"),
    ],
)
def test_arff_lines_that_are_wrong_are_named(tmp_path: Path, line: str, message: str) -> None:
    X, Y = data()
    lines = arff(X, Y).splitlines()
    lines.insert(13, line)
    (tmp_path / "f.arff").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        run(tmp_path, tmp_path / "f.arff", labels=mulan(tmp_path / "f.xml"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("'f 1' numeric", "'f 1' string", "line 9: an attribute is numeric or"),
        ("'f 1' numeric", "'f 1' {low, high}", "the feature 'f 1' has the values low, high"),
        ("'f 1' numeric", "'f 0' numeric", "two attributes 'f 0'"),
        ("@attribute 'happy'", "@attribute 'merry'", "no attribute 'happy', which is a label by --labels"),
        ("@data", "data", "line 13: an ARFF file has @attribute lines before @data"),
        ("@RELATION r", "@relation 'r: -C 99'", None),
    ],
)
def test_arff_headers_that_do_not_fit_are_refused(
    tmp_path: Path, old: str, new: str, message: str | None
) -> None:
    X, Y = data()
    text = arff(X, Y)
    assert old in text
    (tmp_path / "f.arff").write_text(text.replace(old, new), encoding="utf-8")
    if message is None:
        # Mulan's names go before the relation's.
        assert run(tmp_path, tmp_path / "f.arff", labels=mulan(tmp_path / "f.xml")).m == M
        with pytest.raises(InputError, match="has -C 99 in its relation, and 9 attributes"):
            run(tmp_path, tmp_path / "f.arff")
        return
    with pytest.raises(InputError, match=message):
        run(tmp_path, tmp_path / "f.arff", labels=mulan(tmp_path / "f.xml"))


def test_an_arff_file_of_one_label_a_row(tmp_path: Path) -> None:
    lines = ["@relation r", "@attribute size real", "@attribute kind {cat, 'big dog'}", "@data"]
    (tmp_path / "f.arff").write_text("\n".join([*lines, "1,cat", "2.5,'big dog'", "{0 3}"]), encoding="utf-8")
    result = run(tmp_path, tmp_path / "f.arff", labels_name="kind", test_share=0.0)
    dataset = opened(tmp_path, result)
    assert dataset.class_names == ("cat", "big dog")
    assert dataset.labels().tolist() == [0, 1, 0]
    assert np.asarray(dataset.rows(0, 3)).tolist() == [[1.0], [2.5], [3.0]]
    with pytest.raises(InputError, match="no attribute 'species': it has size, kind"):
        run(tmp_path, tmp_path / "f.arff", labels_name="species")


def test_a_separator_is_for_words(tmp_path: Path) -> None:
    X, Y = data()
    for write in (from_npz, from_libsvm, from_arff):
        with pytest.raises(InputError, match="several labels per row already: leave --label-separator out"):
            run(tmp_path, **write(tmp_path, X, Y), label_separator=",")


def test_an_arff_file_alone_does_not_say_which_are_labels(tmp_path: Path) -> None:
    features = from_arff(tmp_path, *data())["features"]
    with pytest.raises(InputError, match=r"f\.arff has no labels: .* the XML of an ARFF file of several"):
        run(tmp_path, features)


def test_label_names_belong_to_arff_files(tmp_path: Path) -> None:
    X, Y = data()
    with pytest.raises(InputError, match=r"f\.npz is not an ARFF file, and --labels names"):
        run(tmp_path, **from_npz(tmp_path, X, Y), labels=mulan(tmp_path / "f.xml"))
    (tmp_path / "bad.xml").write_text("<labels><label/></labels>", encoding="utf-8")
    with pytest.raises(InputError, match="names a different label in each"):
        read_label_names(tmp_path / "bad.xml")
    (tmp_path / "bad.xml").write_text("<labels", encoding="utf-8")
    with pytest.raises(InputError, match="cannot be read as Mulan's XML"):
        read_label_names(tmp_path / "bad.xml")


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "file", "shape", "labels_per_row"),
    [
        ("emotions", "emotions-train", (391, 72, 6), 1.813),
        ("yeast", "yeast", (2417, 103, 14), 4.237),
        ("enron", "enron", (1702, 1001, 53), 3.378),
    ],
)
def test_public_sets_have_the_sizes_that_are_known(
    shared_data: Path, name: str, file: str, shape: tuple[int, ...], labels_per_row: float
) -> None:
    folder = shared_data / f"multilabel_{name}"
    path, names = folder / f"{file}.arff.gz", read_label_names(folder / f"{name}.xml")
    source = open_features(path, None, None, names)
    labels = source.labels()
    assert labels is not None
    assert (source.n, source.d, len(source.class_names or ())) == shape
    assert round(float(np.mean([len(row) for row in labels])), 3) == labels_per_row
    assert len(read_header(path).attributes) == shape[1] + shape[2]


def halves(folder: Path, write: Callable[[Path, Array, Array], Mapping[str, Any]]) -> dict[str, Any]:
    """The rows in two files of one format, 25 for training and 15 for testing."""
    X, Y = data()
    given: list[dict[str, Any]] = []
    for name, rows in (("train", slice(0, 25)), ("test", slice(25, N))):
        (folder / name).mkdir()
        given.append(dict(write(folder / name, X[rows], Y[rows])))
    return {**given[0], "test_features": given[1]["features"]}


@pytest.mark.parametrize("write", [from_npz, from_libsvm, from_lists, from_arff, from_sparse_arff])
def test_test_rows_may_have_a_file_of_their_own(
    tmp_path: Path, write: Callable[[Path, Array, Array], Mapping[str, Any]]
) -> None:
    X, Y = data()
    result = run(tmp_path, **halves(tmp_path, write), class_names=named(tmp_path / "names.txt"))
    dataset = opened(tmp_path, result)
    found, labels = content(dataset)
    assert found.tolist() == X.tolist()
    assert labels == [{NAMES[j] for j in np.flatnonzero(row)} for row in Y]
    assert dataset.split().tolist() == [0] * 25 + [2] * 15
    (tmp_path / "split.txt").write_text("train\n" * N, encoding="utf-8")
    again = tmp_path / "again"
    again.mkdir()
    with pytest.raises(ConfigError, match="--split and --test-features both say"):
        run(tmp_path, **halves(again, write), split=tmp_path / "split.txt")


@pytest.mark.parametrize(
    ("train", "test"), [("0,2 3:1\n1 1:2\n", "2 5:1\n"), ("2 3:1\n1 1:2\n", "0,2 5:1 7:1\n")]
)
def test_libsvm_files_may_end_at_other_columns_and_have_single_labels(
    tmp_path: Path, train: str, test: str
) -> None:
    (tmp_path / "a.svm").write_text(train, encoding="utf-8")
    (tmp_path / "a.svm.t").write_text(test, encoding="utf-8")
    result = run(tmp_path, tmp_path / "a.svm", test_features=tmp_path / "a.svm.t")
    found, labels = content(opened(tmp_path, result))
    assert found.shape == (3, 5 if "7:" not in test else 7)
    assert (found[0, 2], found[1, 0], found[2, 4]) == (1.0, 2.0, 1.0)
    assert labels[1] == {"1"}
    assert {len(row) for row in labels} == {1, 2}


def test_single_labels_stay_single_over_two_files(tmp_path: Path) -> None:
    X, _ = data()
    for name in ("a", "b"):
        table = {f"x{j}": X[:, j] for j in range(D)} | {"label": ["cat", "dog"] * (N // 2)}
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    result = run(tmp_path, tmp_path / "a.parquet", test_features=tmp_path / "b.parquet")
    assert result.label_sets is None
    assert result.counts["test"] == N
    assert opened(tmp_path, result).class_names == ("cat", "dog")


def test_columns_from_0_are_those_of_both_files(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("1 1:1\n0 2:1\n", encoding="utf-8")
    (tmp_path / "b.svm").write_text("1 0:3\n", encoding="utf-8")
    result = run(tmp_path, tmp_path / "a.svm", test_features=tmp_path / "b.svm", layout="dense")
    assert np.asarray(opened(tmp_path, result).rows(0, 3)).tolist() == [[0, 1, 0], [0, 0, 1], [3, 0, 0]]


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    X, Y = data()
    np.savez(tmp_path / "a.npz", X=X, Y=Y)
    np.savez(tmp_path / "b.npz", X=X[:, :3], Y=Y)
    np.savez(tmp_path / "c.npz", X=X, Y=Y[:, :2])
    with pytest.raises(InputError, match=r"a\.npz has 5 features per row and .*b\.npz 3"):
        run(tmp_path, tmp_path / "a.npz", test_features=tmp_path / "b.npz")
    with pytest.raises(InputError, match=r"have labels of shapes \(40, 4\) and \(40, 2\)"):
        run(tmp_path, tmp_path / "a.npz", test_features=tmp_path / "c.npz")
