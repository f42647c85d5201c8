"""Features in files become a dataset, with labels, splits and test rows from inside or from own files."""

from __future__ import annotations

import gzip
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from tests.pipeline.watching import Recorder
from topline.pipeline.errors import InputError, InterruptedRunError
from topline.pipeline.ingest import Edits, ImportResult, edited_dataset, import_features
from topline.pipeline.ingest.splits import HeldOut, hold_out, repeated_content, split_of_content, split_rows
from topline.pipeline.options.ingest import ImportConfig
from topline.pipeline.readers import open_features
from topline.storage.datasets import Dataset, check_dataset
from topline.storage.schema import SPLITS
from topline.storage.stores import open_store

N, D, M = 57, 6, 4

Array = np.ndarray[Any, Any]


def data(n: int = N) -> tuple[Array, Array]:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n, D)).astype(np.float32)
    X[np.abs(X) < 0.3] = 0.0
    return X, np.arange(n) * 7 % M


def run(tmp_path: Path, features: Path, **options: Any) -> ImportResult:
    return import_features(ImportConfig(features=str(features), store=str(tmp_path / "store"), **options))


def opened(tmp_path: Path, result: ImportResult) -> Dataset:
    return Dataset.open(open_store(str(tmp_path / "store")), result.dataset)


def dense(dataset: Dataset) -> Array:
    rows = dataset.rows(0, dataset.info.n_rows)
    return rows.toarray() if sparse.issparse(rows) else np.asarray(rows)


def libsvm_text(X: Array, labels: Array, *, base: int = 1) -> str:
    lines = []
    for row, label in zip(X, labels, strict=True):
        pairs = " ".join(f"{j + base}:{row[j]:.9g}" for j in np.flatnonzero(row))
        lines.append(f"{label} {pairs}".rstrip())
    return "\n".join(lines) + "\n"


def write_npz(path: Path, X: Array, y: Array) -> None:
    np.savez_compressed(path, X=X, y=y)


def write_csr(path: Path, X: Array, y: Array) -> None:
    matrix = sparse.csr_matrix(X)
    np.savez(
        path,
        data=matrix.data,
        indices=matrix.indices,
        indptr=matrix.indptr,
        shape=X.shape,
        format=b"csr",
        y=y,
    )


def write_lists(path: Path, X: Array, y: Array) -> None:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), D)
    pq.write_table(pa.table({"embedding": vectors, "label": y}), path, row_group_size=10)


def write_columns(path: Path, X: Array, y: Array) -> None:
    columns = {f"f{j}": X[:, j].astype(np.float64) for j in range(D)}
    pq.write_table(pa.table({"label": y} | columns), path, row_group_size=10)


def write_hdf5(path: Path, X: Array, y: Array) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("group/vectors", data=X, chunks=(8, D))
        file.create_dataset("labels", data=y)


def write_libsvm(path: Path, X: Array, y: Array) -> None:
    path.write_text(libsvm_text(X, y), encoding="utf-8")


def write_gzipped(path: Path, X: Array, y: Array) -> None:
    path.write_bytes(gzip.compress(libsvm_text(X, y, base=0).encode()))


def write_csv(path: Path, X: Array, y: Array) -> None:
    pd.DataFrame(X).rename(columns=str).assign(label=y).to_csv(path, index=False)


WRITERS: Mapping[str, Callable[[Path, Array, Array], None]] = {
    "a.npz": write_npz,
    "sparse.npz": write_csr,
    "lists.parquet": write_lists,
    "columns.parquet": write_columns,
    "a.h5": write_hdf5,
    "a.svm": write_libsvm,
    "a.txt.gz": write_gzipped,
    "A.TXT.GZ": write_gzipped,
    "a.csv": write_csv,
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("layout", ["dense", "csr"])
def test_every_format_gives_the_same_dataset(tmp_path: Path, name: str, layout: str) -> None:
    X, y = data()
    # Column 0 and the last one are there, so that LIBSVM text shows all of them.
    X[0, 0] = X[0, -1] = 1.5
    WRITERS[name](tmp_path / name, X, y)
    result = run(tmp_path, tmp_path / name, layout=layout)
    dataset = opened(tmp_path, result)
    assert (result.n, result.d, result.m, result.layout) == (N, D, M, layout)
    np.testing.assert_array_equal(dense(dataset), X)
    assert dataset.labels().tolist() == y.tolist()
    assert dataset.class_names == ("0", "1", "2", "3")
    assert not check_dataset(dataset, deep=True)
    assert run(tmp_path, tmp_path / name, layout=layout).reused


@pytest.mark.parametrize("name", [*WRITERS, "a.npy"])
def test_rows_can_be_asked_for_in_any_pieces(tmp_path: Path, name: str) -> None:
    X, y = data()
    X[0, 0] = X[0, -1] = 1.5
    if name == "a.npy":
        np.save(tmp_path / name, np.asfortranarray(X))
    else:
        WRITERS[name](tmp_path / name, X, y)
    source = open_features(tmp_path / name, None, None)
    for start, stop in [(0, 3), (3, 3), (3, 30), (40, 41), (41, N), (2, 9), (0, N)]:
        rows = source.rows(start, stop)
        found = rows.toarray() if sparse.issparse(rows) else rows
        # Text gives double precision, of numbers written with the digits of single.
        np.testing.assert_array_equal(found.astype(np.float32), X[start:stop])
    source.close()


def test_class_names_of_numbers_and_their_range(tmp_path: Path) -> None:
    X, y = data()
    np.savez(tmp_path / "a.npz", X=X, y=y)
    names = tmp_path / "names.txt"
    names.write_text("zebra\nyak\nxerus\nwolf\nvole\n", encoding="utf-8")
    dataset = opened(tmp_path, run(tmp_path, tmp_path / "a.npz", class_names=names))
    assert dataset.class_names == ("zebra", "yak", "xerus", "wolf", "vole")
    assert dataset.labels().tolist() == y.tolist()
    names.write_text("zebra\nyak\nxerus\n", encoding="utf-8")
    with pytest.raises(
        InputError, match=r"a label out of range in rows 1 \(3\), 5 \(3\), 9 \(3\) and 11 more: .*0\.\.2"
    ):
        run(tmp_path, tmp_path / "a.npz", class_names=names)


def test_splits_from_a_file_or_a_column(tmp_path: Path) -> None:
    X, y = data(6)
    np.savez(tmp_path / "a.npz", X=X, y=y)
    words = ["train", "test", "val", "training", "TEST", "train"]
    (tmp_path / "split.txt").write_text("\n".join(words), encoding="utf-8")
    np.save(tmp_path / "split.npy", np.array([0, 2, 1, 0, 2, 0]))
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), D)
    pq.write_table(pa.table({"x": vectors, "label": y, "split": words}), tmp_path / "a.parquet")
    expected = [SPLITS[name] for name in ("train", "test", "val", "train", "test", "train")]
    for result in (
        run(tmp_path, tmp_path / "a.npz", split=tmp_path / "split.txt"),
        run(tmp_path, tmp_path / "a.npz", split=tmp_path / "split.npy"),
        run(tmp_path, tmp_path / "a.parquet"),
    ):
        assert opened(tmp_path, result).split().tolist() == expected
    (tmp_path / "bad.txt").write_text("train\nholdout\n" * 3, encoding="utf-8")
    with pytest.raises(InputError, match=r"bad.txt, row 1, has the split 'holdout'"):
        run(tmp_path, tmp_path / "a.npz", split=tmp_path / "bad.txt")


@pytest.mark.parametrize(
    ("index", "names"),
    [
        (None, ["row000000000", "row000000001", "row000000002"]),
        ([5, 3, 8], ["row000000000", "row000000001", "row000000002"]),
        (["a.jpg", "b.jpg", "c.jpg"], ["a.jpg", "b.jpg", "c.jpg"]),
        (["a.jpg", "b.jpg", "a.jpg"], ["row000000000", "row000000001", "row000000002"]),
    ],
)
def test_the_index_of_a_data_frame_names_rows_at_most(
    tmp_path: Path, index: list[Any] | None, names: list[str]
) -> None:
    X, y = data(3)
    frame = pd.DataFrame(X, index=index).rename(columns=str).assign(label=y)
    frame.to_parquet(tmp_path / "frame.parquet")
    dataset = opened(tmp_path, run(tmp_path, tmp_path / "frame.parquet"))
    np.testing.assert_array_equal(dense(dataset), X)
    assert dataset.sample_ids() == names


def test_clip_retrieval_folders(tmp_path: Path) -> None:
    X, y = data(30)
    for part, rows in {"2": slice(10, 25), "0": slice(0, 10), "10": slice(25, 30)}.items():
        for folder in ("img_emb", "metadata"):
            (tmp_path / "clip" / folder).mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "clip" / "img_emb" / f"img_emb_{part}.npy", X[rows].astype(np.float16))
        paths = [f"img{i}.jpg" for i in range(rows.start, rows.stop)]
        table = pa.table({"image_path": paths, "label": y[rows]})
        pq.write_table(table, tmp_path / "clip" / "metadata" / f"metadata_{part}.parquet")
    dataset = opened(tmp_path, run(tmp_path, tmp_path / "clip"))
    np.testing.assert_array_equal(dense(dataset), X.astype(np.float16).astype(np.float32))
    assert dataset.labels().tolist() == y.tolist()
    assert dataset.sample_ids() == [f"img{i}.jpg" for i in range(30)]


def test_sparse_text_is_stored_sparse_and_dense_text_dense(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = np.where(rng.random((40, 200)) < 0.02, 1.0, 0.0)
    X[0, -1] = 1.0
    write_libsvm(tmp_path / "thin.svm", X, np.arange(40) % 3)
    result = run(tmp_path, tmp_path / "thin.svm")
    assert (result.layout, result.d) == ("csr", 200)
    np.testing.assert_array_equal(dense(opened(tmp_path, result)), X)
    write_libsvm(tmp_path / "thick.svm", X[:, :3] + 1, np.arange(40) % 3)
    assert run(tmp_path, tmp_path / "thick.svm").layout == "dense"


TOO_LARGE = ("99999999999", "2147483648", "9" * 30)
NO_LABELS = ("1_0", "0x10", "1e40", "\u0663", "1e1", "+-1", "2.5", "1234567890123456")


def test_labels_that_are_numbers_or_names(tmp_path: Path) -> None:
    path = tmp_path / "X.svm"
    path.write_text("1 1:1\n+1 1:2\n2.0 1:3\n-1 1:1\nK\u00e4fer 1:1\n007 1:1\n")
    labels = open_features(path).labels()
    assert labels.tolist() == ["1", "+1", "2.0", "-1", "K\u00e4fer", "007"]


def test_libsvm_details(tmp_path: Path) -> None:
    path = tmp_path / "a.svm"
    path.write_text("# a comment\n+1 2:0.5 7:-1e-3 # note\n\n-1\n-1 1:3\n", encoding="utf-8")
    dataset = opened(tmp_path, run(tmp_path, path, layout="csr", test_share=0.0))
    assert dataset.class_names == ("-1", "1")
    assert dataset.labels().tolist() == [1, 0, 0]
    assert dense(dataset).tolist() == [
        [0, 0.5, 0, 0, 0, 0, np.float32(-1e-3)],
        [0] * 7,
        [3, 0, 0, 0, 0, 0, 0],
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 2:0.5 1:1", "indices .* should be sorted and unique"),
        ("1 2:0.5 2:1", "indices .* should be sorted and unique"),
        ("1 2:x", "could not convert string to float: b'x'"),
        ("1 qid:3 1:2", "a query id, which only rankings have"),
        ("1:2 2:3", "does not begin with one label"),
        ("1 0.5 0.7", "a line is LABEL INDEX:VALUE"),
        ("1 -1:2", "Invalid index -1"),
        ("1 1.5:2", "invalid literal for int"),
        *((f"1 {index}:2", "an index is too large: columns go up to 2,147,483,647") for index in TOO_LARGE),
        *((f"{label} 1:2", "the label .* is not a whole number: write digits") for label in NO_LABELS),
    ],
)
def test_libsvm_lines_that_are_wrong_are_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "a.svm"
    path.write_text(f"0 1:1\n{line}\n0 1:1\n", encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        run(tmp_path, path)
    assert f"{path}, line 2: " in str(caught.value)


def test_features_that_are_not_finite_are_named_by_row(tmp_path: Path) -> None:
    X, y = data()
    X[[4, 9, 30, 31], 2] = [np.nan, np.inf, -np.inf, np.nan]
    np.savez(tmp_path / "a.npz", X=X, y=y)
    with pytest.raises(
        InputError, match=r"a.npz has NaN or infinity in rows 4, 9, 30 and 1 more: fill in .* or leave out"
    ):
        run(tmp_path, tmp_path / "a.npz")
    with pytest.raises(InputError, match=r"NaN or infinity in rows 4, 9, 30"):
        run(tmp_path, tmp_path / "a.npz", layout="csr")
    X[:] = 70_000.0
    np.savez(tmp_path / "a.npz", X=X, y=y)
    with pytest.raises(InputError, match=r"values beyond float16 in rows 0, 1, 2 .*float32 reaches further"):
        run(tmp_path, tmp_path / "a.npz", dtype="float16")
    np.savez(tmp_path / "a.npz", X=X.astype(np.float64) * 1e40, y=y)
    with pytest.raises(InputError, match="values beyond float32"):
        run(tmp_path, tmp_path / "a.npz")
    assert (
        Dataset.open(open_store(str(tmp_path / "store")), run(tmp_path, good(tmp_path)).dataset).info.n_rows
        == N
    )


def good(tmp_path: Path) -> Path:
    X, y = data()
    np.savez(tmp_path / "good.npz", X=X, y=y)
    return tmp_path / "good.npz"


def test_lengths_must_match(tmp_path: Path) -> None:
    X, _ = data()
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", np.zeros(N - 1, dtype=int))
    with pytest.raises(
        InputError, match=r"y.npy has 56 labels for the 57 rows of .*X.npy: give one for each row"
    ):
        run(tmp_path, tmp_path / "X.npy", labels=tmp_path / "y.npy")
    with pytest.raises(InputError, match=r"has no labels: name the column .* or their file with --labels"):
        run(tmp_path, tmp_path / "X.npy")
    with pytest.raises(InputError, match=r"no file of labels at label: .* --labels-name"):
        run(tmp_path, tmp_path / "X.npy", labels=Path("label"))
    with pytest.raises(InputError, match=r"56 splits for the 57 rows"):
        run(tmp_path, good(tmp_path), split=tmp_path / "y.npy")


def test_numbers_of_a_table_that_are_not_finite_are_named_by_column(tmp_path: Path) -> None:
    table = {"width": [1.0, 2.0, 3.0, 4.0], "price": [1.0, None, 2.0, 3.0], "label": ["a", "b", "a", "b"]}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"has NaN or infinity in row 1, of price: fill in"):
        run(tmp_path, tmp_path / "t.parquet")


def test_an_interrupted_import_goes_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    # Three shards of 16 MiB at most.
    X = rng.normal(size=(140, 65_536)).astype(np.float32)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", np.arange(140) % 3)
    options = ImportConfig(
        features=str(tmp_path / "X.npy"), labels=tmp_path / "y.npy", store=str(tmp_path / "store")
    )

    with pytest.raises(InterruptedRunError, match=r"stopped by SIGTERM; 1 of 3 parts are stored"):
        import_features(options, Recorder(64, lambda: signal.raise_signal(signal.SIGTERM)))
    result = import_features(options)
    np.testing.assert_array_equal(dense(opened(tmp_path, result)), X)


def test_what_is_not_taken_and_what_may_not_be_meant_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    X, y = data()
    kinds = np.array([("one", "two")[label % 2] for label in y])
    kinds[3] = "odd"
    columns = {f"f{place}": column for place, column in enumerate(X.T)} | {"kind": kinds, "note": kinds}
    columns |= {"when": kinds, "who": kinds}
    pq.write_table(pa.table(columns), tmp_path / "table.parquet")
    with pytest.raises(InputError, match=r"name the column .* with --labels-name \(kind, note, when, who\)"):
        run(tmp_path, tmp_path / "table.parquet")
    with pytest.raises(
        InputError, match=r"no column 'kid': did you mean 'kind'\? it has f0, .* \(\d+ in all\)"
    ):
        run(tmp_path, tmp_path / "table.parquet", labels_name="kid")
    with caplog.at_level("INFO"):
        run(tmp_path, tmp_path / "table.parquet", labels_name="kind")
    assert "not taken, as they are no numbers, labels or names of rows: note, when, who" in caplog.text
    assert "classes of one row, too few to train on and to measure: odd" in caplog.text
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "hot.npy", np.eye(y.max() + 1)[y])
    run(tmp_path, tmp_path / "X.npy", labels=tmp_path / "hot.npy")
    assert "every row has one label" in caplog.text


@pytest.mark.data
def test_public_files(shared_data: Path, tmp_path: Path) -> None:
    result = run(tmp_path, shared_data / "news20_counts" / "news20_counts.npz")
    assert (result.n, result.d, result.m, result.layout) == (19997, 30776, 20, "csr")
    assert result.info.nonzeros == 2539155
    result = run(tmp_path, shared_data / "segment" / "segment.scale.gz")
    assert (result.n, result.d, result.m, result.layout) == (2310, 19, 7, "dense")


def test_labels_of_one_class_are_said_to_be_too_few(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    np.save(tmp_path / "X.npy", np.eye(6, dtype=np.float32))
    np.save(tmp_path / "y.npy", np.full(6, 3))
    run(tmp_path, tmp_path / "X.npy", labels=tmp_path / "y.npy")
    assert "every label is 3, and training needs at least two classes" in caplog.text


def test_edits_that_newer_files_do_not_have_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    X, y = data()

    def imported(rows: int, labels: Array) -> ImportResult:
        table = pd.DataFrame(X[:rows]).rename(columns=str).assign(label=labels[:rows])
        table.assign(sample_id=[f"r{row}" for row in range(rows)]).to_parquet(tmp_path / f"{rows}.parquet")
        caplog.clear()
        return run(tmp_path, tmp_path / f"{rows}.parquet")

    first = opened(tmp_path, imported(N, y))
    corrected = {f"r{row}": first.class_names[(y[row] + 1) % M] for row in (3, 4, 5)}
    edited_dataset(first, Edits(frozenset({"r9"}), corrected))
    labels = y.copy()
    labels[4] = (y[4] + 1) % M  # corrected in the files too

    newer = imported(N - 1, labels)
    assert f"{newer.dataset} has the labels of its files, without the edits of d0002-" in caplog.text
    assert "(2 labels corrected, 1 row left out)" in caplog.text
    assert opened(tmp_path, newer).labels()[3] == y[3]
    labels[[3, 5]] = (y[[3, 5]] + 1) % M
    imported(9, labels)
    assert "without the edits" not in caplog.text


@pytest.mark.parametrize(("name", "told"), [("Id", True), ("Unnamed: 0", True), ("width", False)])
def test_a_column_that_numbers_the_rows_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, told: bool
) -> None:
    X, y = data()
    frame = pd.DataFrame({name: np.arange(N), "height": X[:, 1], "label": y})
    frame.to_csv(tmp_path / "t.csv", index=False)
    assert run(tmp_path, tmp_path / "t.csv").d == 2
    assert (
        f"{name} is taken as a feature, and its name says that it numbers the rows" in caplog.text
    ) == told


IDS = ["a", "b", "c", "d"]
LABELS = ["cat", "dog", "dog", "cat"]


def table(path: Path, ids: list[Any] = IDS, columns: str = "pqr", **more: list[str]) -> Path:
    values = {name: np.arange(len(ids)) + 10.0 * "pqrs".index(name) for name in columns}
    pd.DataFrame({**values, "sample_id": ids, **more}).to_parquet(path)
    return path


def stored(folder: Path, features: Path, **options: object) -> Dataset:
    config = ImportConfig.model_validate(
        {"features": str(features), "store": str(folder / "store"), "test_share": 0.0, **options}
    )
    result = import_features(config)
    return Dataset.open(open_store(result.store), result.dataset)


def words(dataset: Dataset) -> list[str]:
    return [dataset.class_names[code] for code in dataset.labels().tolist()]


def test_labels_and_splits_go_to_the_rows_that_they_name(tmp_path: Path) -> None:
    features = table(tmp_path / "rows.parquet")
    (tmp_path / "labels.csv").write_text("sample_id,label\nd,cat\nc,dog\nb,dog\na,cat\ne,cow\n")
    (tmp_path / "split.csv").write_text("split;sample_id\ntest;c\ntrain;a\ntrain;d\ntrain;b\n")
    dataset = stored(tmp_path, features, labels=tmp_path / "labels.csv", split=tmp_path / "split.csv")
    assert words(dataset) == LABELS
    assert dataset.split().tolist() == [0, 0, 2, 0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("d,cat\nc,dog\nb,dog\nx,cat\n", r"labels.csv lacks 'a' in its column sample_id"),
        ("d,cat\nc,dog\nb,dog\nb,cat\na,cat\n", r"has 'b' twice in its column sample_id.* leave the column"),
    ],
)
def test_labels_of_other_rows_are_refused(tmp_path: Path, rows: str, message: str) -> None:
    (tmp_path / "labels.csv").write_text("sample_id,label\n" + rows)
    with pytest.raises(InputError, match=message):
        stored(tmp_path, table(tmp_path / "rows.parquet"), labels=tmp_path / "labels.csv")


def test_labels_of_rows_without_names_are_taken_in_order(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.eye(4))
    (tmp_path / "labels.csv").write_text("sample_id,label\nd,cat\nc,dog\nb,dog\na,cat\n")
    assert words(stored(tmp_path, tmp_path / "rows.npy", labels=tmp_path / "labels.csv")) == LABELS


def test_the_name_of_the_labels_is_looked_for_in_their_file(tmp_path: Path) -> None:
    features = table(tmp_path / "rows.parquet")
    (tmp_path / "labels.csv").write_text("label,kind\n1,cat\n2,dog\n3,dog\n4,cat\n")
    np.savez(tmp_path / "labels.npz", sort=np.arange(4), kind=np.array(LABELS))
    for name in ("labels.csv", "labels.npz"):
        assert words(stored(tmp_path, features, labels=tmp_path / name, labels_name="kind")) == LABELS
        with pytest.raises(InputError, match=r"no (column|array) 'knd': did you mean 'kind'\?"):
            stored(tmp_path, features, labels=tmp_path / name, labels_name="knd")
    with pytest.raises(InputError, match="has the arrays sort, kind: name one of them labels"):
        stored(tmp_path, features, labels=tmp_path / "labels.npz")


@pytest.mark.parametrize("option", ["features_name", "labels_name"])
def test_names_that_nothing_in_a_file_can_have_are_refused(tmp_path: Path, option: str) -> None:
    np.save(tmp_path / "rows.npy", np.eye(4))
    (tmp_path / "rows.svm").write_text("1 1:1\n0 2:1\n")
    np.save(tmp_path / "labels.npy", np.arange(4))
    (tmp_path / "labels.txt").write_text("\n".join(LABELS))
    flag = "--" + option.replace("_", "-")
    for name in ("rows.npy", "rows.svm"):
        with pytest.raises(InputError, match=rf"{flag} kind names nothing in .*{name}.*: leave {flag} out"):
            stored(tmp_path, tmp_path / name, **{option: "kind"})
    for name in ("labels.npy", "labels.txt"):
        with pytest.raises(InputError, match=rf"{flag} kind names nothing in .*: leave {flag} out"):
            stored(tmp_path, tmp_path / "rows.npy", labels=tmp_path / name, **{option: "kind"})


@pytest.mark.parametrize("form", ["parquet", "arff"])
def test_test_rows_have_the_same_features_in_the_same_order(tmp_path: Path, form: str) -> None:
    def write(name: str, columns: str) -> Path:
        if form == "parquet":
            return table(tmp_path / f"{name}.parquet", columns=columns, label=LABELS)
        path = tmp_path / f"{name}.arff"
        attributes = "".join(f"@attribute {column} numeric\n" for column in columns)
        path.write_text(
            f"@relation r\n{attributes}@attribute class {{cat,dog}}\n@data\n1,2,3,cat\n1,2,3,dog\n"
        )
        return path

    train = write("train", "pqr")
    with pytest.raises(InputError, match="same features in different orders: write the columns in one order"):
        stored(tmp_path, train, test_features=write("turned", "rqp"))
    with pytest.raises(InputError, match=r"has the features r, and .* s in their place"):
        stored(tmp_path, train, test_features=write("others", "pqs"))
    assert stored(tmp_path, train, test_features=write("same", "pqr")).info.d == 3


def test_test_rows_keep_their_names_and_say_what_is_not_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train = table(tmp_path / "train.parquet", label=LABELS, note=IDS)
    test = table(tmp_path / "test.parquet", ["e", "f"], label=LABELS[:2])
    with caplog.at_level("INFO"):
        assert stored(tmp_path, train, test_features=test).sample_ids() == [*IDS, "e", "f"]
    assert "not taken, as they are no numbers, labels or names of rows: note" in caplog.text
    table(test, ["a", "f"], label=LABELS[:2])
    names = [*(f"train/{name}" for name in IDS), "test/a", "test/f"]
    assert stored(tmp_path, train, test_features=test).sample_ids() == names


def test_whole_numbers_name_rows(tmp_path: Path) -> None:
    dataset = stored(tmp_path, table(tmp_path / "rows.parquet", [7, 3, 5, 9], label=LABELS))
    assert dataset.sample_ids() == ["7", "3", "5", "9"]


def ids(n: int) -> list[str]:
    return [f"image {i}" for i in range(n)]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=60),
    st.sampled_from([0.0, 0.1, 0.2, 0.5, 0.9]),
    st.integers(0, 3),
)
def test_each_class_gives_its_share_and_keeps_one(labels: list[int], share: float, seed: int) -> None:
    y = np.asarray(labels, dtype=np.int32)
    held = hold_out(ids(len(y)), y, HeldOut(share, seed=seed)) == SPLITS["test"]
    more = hold_out(ids(len(y)), y, HeldOut(share, 0.04, 0.05, seed))
    # What is drawn for validation and calibration comes from the training rows.
    assert np.array_equal(more == SPLITS["test"], held)
    for label in set(labels):
        rows = y == label
        n = int(rows.sum())
        left = n - 1
        for part, name in ((share, "test"), (0.04, "val"), (0.05, "calibration")):
            count = min(int(part * n + 0.5), left)
            assert (more[rows] == SPLITS[name]).sum() == count
            left -= count


def test_the_hold_out_depends_on_ids_and_seed_alone() -> None:
    y = np.repeat(np.arange(3, dtype=np.int32), 20)
    names = ids(60)
    held = hold_out(names, y, HeldOut(0.25, 0.1, 0.1, 1))
    order = np.random.default_rng(0).permutation(60)
    shuffled = hold_out([names[i] for i in order], y[order], HeldOut(0.25, 0.1, 0.1, 1))
    assert np.array_equal(shuffled, held[order])
    # A class's own choice is not touched by the others.
    assert np.array_equal(hold_out(names[:20], y[:20], HeldOut(0.25, 0.1, 0.1, 1)), held[:20])
    assert not np.array_equal(hold_out(names, y, HeldOut(0.25, 0.1, 0.1, 2)), held)


def test_rejected_rows_have_no_label_and_classes_without_rows_are_left_out() -> None:
    usable = np.array([True, False, True, True, False])
    found = split_rows(ids(5), ["b", "a", "b", "c", None], [None] * 5, usable, held_out=HeldOut(0.5))
    assert found.class_names == ("b", "c")
    assert found.labels.tolist() == [0, -1, 0, 1, -1]
    assert (found.split == SPLITS["rejected"]).tolist() == (~usable).tolist()
    # Of the two of b one is held out, of the one of c none.
    assert sorted(found.split[[0, 2]].tolist()) == [SPLITS["train"], SPLITS["test"]]
    assert found.split[3] == SPLITS["train"]


def test_given_splits_are_kept() -> None:
    splits = ["train", "val", "test", "train"]
    found = split_rows(ids(4), ["a", "a", "b", "b"], splits, np.ones(4, bool), held_out=HeldOut(0.5))
    assert found.split.tolist() == [0, 1, 2, 0]
    # Calibration rows, which nobody gave, are drawn of the training rows; validation rows are there.
    n = 40
    splits = [("train", "val", "test", "train")[i % 4] for i in range(n)]
    kept = split_rows(ids(n), ["a"] * n, splits, np.ones(n, bool), held_out=HeldOut(0.5, 0.5, 0.25))
    calibration = kept.split == SPLITS["calibration"]
    assert [SPLITS[word] for word in splits] == np.where(calibration, SPLITS["train"], kept.split).tolist()
    assert calibration.sum() == 5


def test_a_content_keeps_its_split_and_shares_are_kept() -> None:
    held_out = HeldOut(0.2, 0.1, 0.3, 5)
    found = [split_of_content(name, held_out) for name in ids(4000)]
    assert found == [split_of_content(name, held_out) for name in ids(4000)]
    for name, share in {**held_out.shares, "train": 0.4}.items():
        # Five standard errors of a share of 4,000.
        assert abs(found.count(name) / 4000 - share) < 5 * np.sqrt(share * (1 - share) / 4000)
    tests = {name for name, split in zip(ids(4000), found, strict=True) if split == "test"}
    assert tests == {name for name in ids(4000) if split_of_content(name, HeldOut(0.2, seed=5)) == "test"}


def test_nothing_left_is_said() -> None:
    with pytest.raises(InputError, match="no usable example"):
        split_rows(ids(1), ["a"], [None], np.zeros(1, bool), held_out=HeldOut(0.2))
    with pytest.raises(InputError, match="left for training"):
        split_rows(ids(1), ["a"], ["test"], np.ones(1, bool), held_out=HeldOut(0.2))


def test_repeated_content_points_to_the_usable_row_with_the_first_name() -> None:
    usable = np.array([False, True, True, True, True])
    names = [("a",), ("c",), ("d",), ("b",), ("e",)]
    assert repeated_content(["x", "x", "y", "x", "y"], usable, names).tolist() == [-1, 3, -1, -1, 2]
