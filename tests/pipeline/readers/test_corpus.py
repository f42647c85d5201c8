"""What people have: each input is read as it is meant, or refused in one sentence that names it."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import pickle
from collections.abc import Callable, Mapping
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import scipy.io
import zarr
from safetensors.numpy import save_file
from scipy import sparse

from topline.pipeline.errors import InputError
from topline.pipeline.readers import label_lists, label_words, names_of_rows, open_features, read_labels

X = np.array([[1.5, -2.0], [4.0, 5.25], [7.0, 8.0]])
Y = np.array(["a", "b", "a"])
AB = ["a", "b", "a"]


def table(**columns: Any) -> dict[str, Any]:
    """Columns of features f, g beside others."""
    return {"f": X[:, 0], "g": X[:, 1], **columns}


def put(path: Path, content: Any) -> None:
    """Write what `content` is in the format that the name says; a mapping without a suffix is a folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, (bytes, str)):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    elif isinstance(content, np.ndarray):
        np.save(path, content, allow_pickle=True)
    elif sparse.issparse(content):
        sparse.save_npz(path, content)
    elif path.suffix.lower() in WRITERS:
        WRITERS[path.suffix.lower()](path, content)
    else:
        path.mkdir()
        for name, inner in content.items():
            put(path / name, inner)


def put_parquet(path: Path, content: Any) -> None:
    pq.write_table(content if isinstance(content, pa.Table) else pa.table(content), path)


def put_npz(path: Path, content: Mapping[str, Any]) -> None:
    with path.open("wb") as file:
        np.savez(file, **content)


def put_hdf5(path: Path, content: Mapping[str, Any], room: int = 0) -> None:
    with h5py.File(path, "w", userblock_size=room) as file:
        for name, array in content.items():
            file[name] = array
        if path.suffix == ".h5ad":
            file.attrs["encoding-type"] = "anndata"


def put_matlab(path: Path, content: Mapping[str, Any]) -> None:
    """MATLAB 7.3 writes HDF5 behind 512 bytes of its own, with all arrays turned."""
    if path.name != "new.mat":
        scipy.io.savemat(path, content)
        return
    put_hdf5(path, {name: array.T for name, array in content.items()}, 512)
    with path.open("r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file")


def put_zarr(path: Path, content: Mapping[str, Any]) -> None:
    for name, array in content.items():
        zarr.open_group(str(path)).create_array(name, data=array)


WRITERS: Mapping[str, Callable[[Path, Any], None]] = {
    ".parquet": put_parquet,
    ".npz": put_npz,
    ".h5": put_hdf5,
    ".h5ad": put_hdf5,
    ".mat": put_matlab,
    ".safetensors": lambda path, content: save_file(content, path),
    ".zarr": put_zarr,
}


def feathered() -> bytes:
    sink = pa.BufferOutputStream()
    feather.write_feather(pa.table(table(label=AB)), sink)
    return sink.getvalue().to_pybytes()


def ragged(*rows: list[Any]) -> dict[str, Any]:
    return {"x": pa.array(rows), "label": AB[: len(rows)]}


HUGGING = json.dumps({"info": {"features": {"label": {"names": ["ant", "bee"], "_type": "ClassLabel"}}}})
CLIP = {"img_emb/img_emb_0.npy": X, "img_emb/img_emb_1.npy": X}

READ = "features are read from NumPy, NumPy archive, Parquet, HDF5, MATLAB from 7.3, MATLAB up to 7"
ARCHIVE = "a zip archive or what is kept in one: write a spreadsheet as CSV, and tensors as safetensors"
BRACKETS = "bring back what is missing, or name the parts that are meant in brackets: train-0000[02]*"
JSON = "JSON lines: write them as Parquet: pandas.read_json(FILE, lines=True)"
ARFF = (
    "@relation r\n@attribute f real\n@attribute g real\n@attribute class {a,b}\n@data\n1.5,-2,a\n4,5,b\n7,8,a"
)

#: Features by the name of their file: labels where they are read, a sentence where they are refused; FILE is
#: their place.
FEATURES: Mapping[str, tuple[Any, list[str] | str | None]] = {
    # -- arrays
    "doubles.npy": (X, None),
    "halves.npy": (X.astype(np.float16), None),
    "integers.npy": (X.astype(np.int8), None),
    "truths.npy": (X > 0, None),
    "columns.npy": (np.asfortranarray(X), None),
    "big.npy": (X.astype(">f4"), None),
    "flat.npy": (X[0], "FILE has shape (2,), and features are (rows, columns)"),
    "cube.npy": (X[None], "FILE has shape (1, 3, 2), and features are (rows, columns)"),
    "rows.npy": (X[:0], "FILE has no rows: its shape is (0, 2); write the features again"),
    "words.npy": (Y[:, None], "FILE holds <U1, and features are real numbers"),
    "complex.npy": (X * 1j, "FILE holds complex128, and features are real numbers"),
    "brain.npy": (
        X.astype(ml_dtypes.bfloat16),
        (
            "FILE holds |V2, and features are real numbers (as NumPy writes bfloat16): save"
            " .astype(np.float32)"
        ),
    ),
    "objects.npy": (
        np.array([{}, {}], dtype=object),
        (
            "FILE cannot be read as a NumPy array of numbers: it holds Python objects, and"
            " reading those can run code: save .astype(str), or numbers"
        ),
    ),
    "._x.npy": (
        b"\0\5\x16\7 resource fork",
        "FILE cannot be read as a NumPy array of numbers: it is no file of NumPy",
    ),
    "pointer.npy": (
        "version https://git-lfs.github.com/spec/v1\n",
        "FILE cannot be read as a NumPy array of numbers: it is no file of NumPy",
    ),
    "net.onnx": (
        b"\x08\x07 1:2\n\x00\x02",
        "FILE, line 2: this is no text; a line is LABEL INDEX:VALUE INDEX:VALUE ... with rising indices",
    ),
    "none.npy": (b"", "FILE is empty, without a byte: write it again"),
    "a.npz": ({"X": X, "y": Y}, AB),
    "column.npz": ({"X": np.asfortranarray(X), "y": Y[:, None]}, AB),
    "split.npz": ({"X": X, "label": Y, "split": ["train"] * 3, "sample_id": ["r", "s", "t"]}, AB),
    "truths.npz": ({"X": X, "y": np.array([True, False, True])}, ["True", "False", "True"]),
    "floats.npz": ({"X": X, "y": np.array([1.0, 0.0, 1.0])}, ["1", "0", "1"]),
    "signs.npz": ({"X": X, "y": np.array([1, -1, 1])}, ["1", "-1", "1"]),
    "none.npz": ({"X": X, "y": np.array(["none", "null", "nan"])}, ["none", "null", "nan"]),
    "indicator.npz": ({"X": X, "Y": np.eye(3)}, ["0", "1", "2"]),
    "two.npz": ({"A": X, "B": X}, "FILE holds A, B: say which are the features with --features-name"),
    "empty.npz": ({}, "FILE holds no array: save one with np.savez"),
    "minus.npz": (
        {"X": X, "y": np.array([0, -1, 1])},
        ("FILE has a negative label in row 1 (-1): number classes from 0, and leave unlabelled rows out"),
    ),
    "nan.npz": ({"X": X, "y": np.array([0.0, np.nan, 1.0])}, "FILE has no label in row 1: give each row one"),
    "half.npz": (
        {"X": X, "y": np.array([0.0, 0.5, 1.0])},
        (
            "FILE has a fraction for a label in row 1 (0.5): number classes from 0, or save their"
            " names as text, labels.astype(str), in .npy or Parquet; amounts are no classes"
        ),
    ),
    "days.npz": (
        {"X": X, "y": np.array(["2026-01-01"] * 3, dtype="datetime64[ns]")},
        "FILE has dates or times for labels: save the classes that they mean as text",
    ),
    "twos.npz": (
        {"X": X, "y": np.eye(3) * 2},
        (
            "FILE has a number that is neither 0 nor 1 in its matrix of labels in rows 0 (2.0), 1 (2.0),"
            " 2 (2.0): give 1 for each label, else 0"
        ),
    ),
    "csr.npz": (sparse.csr_matrix(X), None),
    "csc.npz": (sparse.csc_matrix(X), None),
    "coo.npz": (sparse.coo_matrix(X), None),
    # -- HDF5 and its like
    "a.h5": ({"features": X, "labels": Y.astype("S")}, AB),
    "column.h5": ({"X": X, "y": np.array([[0], [1], [0]])}, ["0", "1", "0"]),
    "group.h5": ({"deep/embedding": X, "targets": np.array([0, 1, 0])}, ["0", "1", "0"]),
    "ids.h5": ({"features": X, "image_ids": np.arange(3)}, None),
    "two.h5": ({"A": X, "B": X}, "FILE holds A, B: say which are the features with --features-name"),
    "junk.h5": (
        b"not hdf5",
        ("FILE cannot be read as HDF5: Unable to synchronously open file (file signature not found)"),
    ),
    "cells.h5ad": (
        {"X": X},
        "FILE is AnnData's: save its matrix with scipy.sparse.save_npz, and its classes as text",
    ),
    "old.mat": ({"X": X, "y": np.array([[0], [1], [0]])}, ["0", "1", "0"]),
    "new.mat": ({"X": X, "y": np.array([[0.0], [1.0], [0.0]])}, ["0", "1", "0"]),
    "a.safetensors": ({"features": X, "labels": np.array([0, 1, 0])}, ["0", "1", "0"]),
    "scale.safetensors": ({"features": X, "logit_scale": np.array(4.6)}, None),
    "brain.safetensors": ({"x": X.astype(ml_dtypes.bfloat16)}, None),
    "group.zarr": ({"features": X, "labels": np.array([0, 1, 0])}, ["0", "1", "0"]),
    # -- Parquet
    "columns.parquet": (table(label=AB), AB),
    "Capital.parquet": (table(Label=AB), AB),
    "truths.parquet": (table(label=[True, False, True]), ["True", "False", "True"]),
    "numbers.parquet": (table(label=[1.0, 0.0, 1.0]), ["1", "0", "1"]),
    "names.parquet": (table(label=["none", "null", "nan"]), ["none", "null", "nan"]),
    "categories.parquet": (table(label=pa.array(AB).dictionary_encode()), AB),
    "decimals.parquet": ({"f": [Decimal(str(v)) for v in X[:, 0]], "g": pa.array(X[:, 1]), "label": AB}, AB),
    "lists.parquet": ({"x": list(X), "label": AB}, AB),
    "tensors.parquet": ({"x": pa.FixedShapeTensorArray.from_numpy_ndarray(X[:, :, None]), "label": AB}, AB),
    "fixed.parquet": ({"x": pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 2), "label": AB}, AB),
    "hugging.parquet": (
        pa.table(table(label=[0, 1, 0])).replace_schema_metadata({"huggingface": HUGGING}),
        ["ant", "bee", "ant"],
    ),
    "several.parquet": (table(label=[["a"], ["a", "b"], []]), ["a", "a b", ""]),
    "unlabelled.parquet": (table(), None),
    "days.parquet": (
        table(label=np.array(["2026-01-01"] * 3, dtype="datetime64[ns]")),
        "FILE has dates or times for labels: save the classes that they mean as text",
    ),
    "gap.parquet": (table(label=["a", None, "b"]), "FILE has no label in row 1: give each row one"),
    "twice.parquet": (
        table(label=AB, sample_id=["r", "r", "s"]),
        (
            "FILE names rows 0, 1 alike, 'r': give each row a name of its own, or leave the"
            " column of names out"
        ),
    ),
    "nameless.parquet": (
        table(label=AB, sample_id=["r", None, "s"]),
        "FILE has no sample_id in row 1: name every row, or leave the column sample_id out",
    ),
    # By their names edits, forgetting and tables of labels find rows.
    "blank.parquet": (
        table(label=AB, sample_id=["r", " ", "s"]),
        "FILE has no sample_id in row 1: name every row, or leave the column sample_id out",
    ),
    "numbered.parquet": (
        table(label=AB, sample_id=[1.0, None, 2.0]),
        "FILE has no sample_id in row 1: name every row, or leave the column sample_id out",
    ),
    "ragged.parquet": (
        ragged([1.0, 2.0], [3.0]),
        "FILE: row 1 has 1 features, and others 2: make all lists of one length",
    ),
    "nested.parquet": (
        ragged([[1.0]], [[2.0]]),
        (
            "FILE has lists of list<element: double> in x, and features are lists of numbers:"
            " write one flat list a row"
        ),
    ),
    "texts.parquet": (
        {"a": AB, "label": AB},
        "FILE has no column of numbers or of lists of numbers: it has a, label",
    ),
    "cut.parquet": (
        b"PAR1",
        (
            "FILE cannot be read as Parquet: Parquet file size is 4 bytes, smaller than the"
            " minimum file footer (8 bytes)"
        ),
    ),
    # -- text tables
    "a.csv": ("f,g,label\n1.5,-2,a\n4,5.25,b\n7,8,a\n", AB),
    "a.tsv": ("f\tg\tlabel\n1.5\t-2\ta\n4\t5.25\tb\n7\t8\ta\n", AB),
    "semicolons.csv": ("f;g;label\n1,5;-2;a\n4;5,25;b\n7;8;a\n", AB),
    "marked.csv": ("\ufefff,g,label\r\n1.5,-2,a\r\n4,5.25,b\r\n7,8,a\r\n", AB),
    "blanks.csv": ("f, g, label\n1.5, -2, a\n4, 5.25, b\n7, 8, a\n", AB),
    "packed.csv.gz": (gzip.compress(b"f,g,label\n1.5,-2,a\n4,5.25,b\n7,8,a\n"), AB),
    "packed.tsv.gz": (gzip.compress(b"f\tg\tlabel\n1.5\t-2\ta\n4\t5.25\tb\n7\t8\ta\n"), AB),
    "PACKED.CSV.GZ": (gzip.compress(b"f;g;label\n1.5;-2;a\n4;5.25;b\n7;8;a\n"), AB),
    "commas.csv": ("1,5;-2\n4;5,25\n7;8\n", None),
    "points.csv": ("f;g;labels\n1.5;-2;0,3\n4;5.25;1,2\n7;8;0,3\n", ["0,3", "1,2", "0,3"]),
    **{
        # Names that begin as other formats do.
        f"{name}.csv": (f"{name},g,label\n1.5,-2,a\n4,5.25,b\n7,8,a\n", AB)
        for name in ("PAR1", "FEA1", "BZh")
    },
    "truths.csv": ("f,g,label\n1,true,True\n0,false,False\n1,true,True\n", ["True", "False", "True"]),
    "lower.csv": ("f,g,Label\n1,1,true\n0,2,false\n1,3,true\n", ["True", "False", "True"]),
    "names.csv": ("f,g,label\n1,1,none\n0,2,null\n1,3,nan\n", ["none", "null", "nan"]),
    "versions.csv": ("f,g,label\n1,1,3.11\n0,2,nightly\n1,3,3.10\n", ["3.11", "nightly", "3.10"]),
    "zeros.csv": ("f,g,label\n1,1,007\n0,2,1.0\n1,3,+2\n", ["007", "1", "2"]),
    "accents.csv": ("f,g,label\n1,1,e\u0301\n0,2,\u00e9\n1,3,b\n", ["\u00e9", "\u00e9", "b"]),
    "bare.csv": ("1.5,-2\n4,5.25\n7,8\n", None),
    "fractions.csv": (
        "f,g,label\n1,1,0.5\n0,2,1\n1,3,2\n",
        (
            "FILE has a fraction for a label in row 0 (0.5): number classes from 0, or save their"
            " names as text, labels.astype(str), in .npy or Parquet; amounts are no classes"
        ),
    ),
    "double.csv": ("x,x,label\n1,2,a\n", "FILE has two columns 'x': give each a name of its own"),
    "nameless.csv": (
        "x,label,sample_id\n1,a,r\n2,b,\n",
        "FILE has no sample_id in row 1: name every row, or leave the column sample_id out",
    ),
    "long.csv": (
        "x,label\n1,a\n2,b,3\n",
        "FILE cannot be read as CSV: CSV parse error: Row #3: Expected 2 columns, got 3: 2,b,3",
    ),
    "heads.csv": ("x,label\n", "FILE has no column of numbers: it has x, label"),
    "mixed.csv": (
        "5.1,3.5,setosa\n4.9,3.0,setosa\n",
        "FILE has numbers in its first line, which names the columns: put names above them",
    ),
    "latin.csv": (
        b"x,label\n\xff\xfe,a\n",
        "FILE cannot be read as CSV: it is no UTF-8 text: save it with that encoding",
    ),
    "not.csv.gz": (b"x,label\n1,a\n", "FILE is not gzipped, as its name says: name it without .gz"),
    "cut.csv.gz": (
        gzip.compress(b"f,g,label\n1.5,-2,a\n4,5.25,b\n")[:20],
        (
            "FILE cannot be read: Compressed file ended before the end-of-stream marker was reached;"
            " it is damaged: write it again"
        ),
    ),
    "bare.csv.gz": (gzip.compress(b""), "FILE has no rows"),
    # -- LIBSVM and ARFF
    "a.svm": ("1 1:1.5 2:-2\n2 1:4 2:5.25\n1 1:7 2:8\n", ["1", "2", "1"]),
    "zero.txt": ("+1 0:1.5 1:-2\n-1 0:4 1:5.25\n1 0:7 1:8\n", ["1", "-1", "1"]),
    "marked.svm": ("\ufeff1 1:1.5 2:-2\r\n2 1:4 2:5.25\r\n1 1:7 2:8\r\n", ["1", "2", "1"]),
    "sizes.txt": (
        "3 5 4\n0,2 1:1\n1 4:2\n",
        "FILE begins with 3 5 4, but has 2 rows and 5 columns: fix its first line or leave it out",
    ),
    "a.libsvm.gz": (gzip.compress(b"cat 1:1.5 2:-2\ndog 1:4 2:5\ncat 1:7 2:8\n"), ["cat", "dog", "cat"]),
    "several.svm": ("1,2 1:1 2:1\n2 1:1\n 2:3\n", ["1 2", "2", ""]),
    "order.svm": (
        "1 2:1 1:1\n",
        (
            "FILE, line 1: Feature indices in SVMlight/LibSVM data file should be sorted and"
            " unique.; a line is LABEL INDEX:VALUE INDEX:VALUE ... with rising indices"
        ),
    ),
    "table.txt": (
        "a,b\n1,2\n",
        "FILE has no index:value pair, and is no LIBSVM text; a table is called .csv",
    ),
    "a.arff": (ARFF, AB),
    "cut.arff": ("@relation r\n", "FILE has no @data: it is not an ARFF file, or cut short"),
    "left.arff": (
        "@relation 'r: -C -1'\n@attribute a {1,2}\n@attribute b {0,1}\n@data\n{1 1}\n",
        (
            "FILE, line 5: a sparse row that leaves 'a' out means 1, the first of its values: let them"
            " begin with 0"
        ),
    ),
    # -- several parts
    "shards": (
        {"part_10.npy": X[2:], "part_2.npy": X[1:2], "part_1.npy": X[:1], "README.md": "shards"},
        None,
    ),
    "parts": (
        {
            "b-1.parquet": {"f": [1.5, 4.0], "g": [-2.0, 5.25], "label": AB[:2]},
            "b-2.parquet": {"f": [7.0], "g": [8.0], "label": AB[2:]},
        },
        AB,
    ),
    "whole": ({"part-1-of-2.npy": X[:1], "part-2-of-2.npy": X[1:2], "val-00000-of-00001.npy": X[2:]}, None),
    "no middle": (
        {f"train-{part:05d}-of-00003.parquet": {"f": [1.5], "g": [-2.0], "label": ["a"]} for part in (0, 2)},
        f"FILE: part 1 of 3 is missing, train-00001-of-00003: {BRACKETS}",
    ),
    "no end": (
        {"y_1-of-9.csv": "f,g\n1,2\n", "y_2-of-9.csv": "f,g\n1,2\n"},
        f"FILE: part 0 of 9 is missing, y_0-of-9 and 6 more: {BRACKETS}",
    ),
    "hive": (
        {
            f"label={name}": {"p.parquet": {"f": X[row : row + 1, 0], "g": X[row : row + 1, 1]}}
            for row, name in enumerate("xyz")
        },
        ["x", "y", "z"],
    ),
    "tables": ({"1.csv": "f,g,label\n1.5,-2,a\n4,5.25,b\n", "2.csv": "f,g,label\n7,8,a\n"}, AB),
    "clip": (
        {**CLIP, "metadata/metadata_0.parquet": {"label": AB}, "metadata/metadata_1.parquet": {"label": AB}},
        AB * 2,
    ),
    "torn clip": (
        {**CLIP, "metadata/metadata_0.parquet": {"label": AB}},
        (
            "FILE has img_emb/img_emb_1.npy without its counterpart: img_emb/img_emb_N.npy and"
            " metadata/metadata_N.parquet belong together, row by row; bring back what is missing"
        ),
    ),
    "short clip": (
        {
            **CLIP,
            "metadata/metadata_0.parquet": {"label": AB},
            "metadata/metadata_1.parquet": {"label": AB[:2]},
        },
        "FILE/metadata/metadata_1.parquet has 2 rows, and img_emb_1.npy 3: they must agree",
    ),
    "kinds": (
        {"a.npy": X, "b.csv": "f,g\n1,2\n"},
        "FILE has files of several kinds (1 .npy, 1 .csv): name those of one with a pattern",
    ),
    "widths": (
        {"a1.npy": X, "a2.npy": X[:, :1]},
        "FILE/a1.npy has 2 features per row and FILE/a2.npy 1: give files of the same features",
    ),
    "others": (
        {"a1.csv": "f,g\n1,2\n", "a2.csv": "f,h\n1,2\n"},
        ("FILE/a1.csv has the features g, and FILE/a2.csv h in their place: give files of the same features"),
    ),
    # -- what is named for what it is
    **{
        name: (content, f"FILE is {said}; {READ}, safetensors, ARFF, CSV, LIBSVM text")
        for name, content, said in (
            ("a.jsonl", '{"x": 1}\n', JSON),
            ("rows.txt", '{"x": 1}\n', JSON),
            ("a.csv.bz2", bz2.compress(b"a,b\n1,2\n"), "packed by bzip2: unpack it, or pack it with gzip"),
            ("a.csv.xz", lzma.compress(b"a,b\n1,2\n"), "packed by xz: unpack it, or pack it with gzip"),
            ("a.feather", feathered(), "Arrow: write the table as Parquet"),
            (
                "a.bin",
                pickle.dumps(X, 4),
                "a pickle: reading it can run code: save the arrays with numpy.savez",
            ),
            ("a.xlsx", b"PK\x03\x04", ARCHIVE),
        )
    },
}


def words_in(labels: Any, place: str, names: Any) -> list[str] | None:
    """Return the class of each row, several with blanks between them."""
    if labels is None:
        return None
    lists = label_lists(np.asarray(labels), place, names)
    return [" ".join(row) for row in lists.rows] if lists else label_words(np.asarray(labels), place, names)


def judge(path: Path) -> None:
    """Ask for all that an import asks for before it reads rows."""
    with closing(open_features(path)) as source:
        names_of_rows(source)
        words_in(source.labels(), source.place, source.class_names)


@pytest.mark.parametrize("name", FEATURES)
def test_features_are_read_as_they_are_meant_or_refused(tmp_path: Path, name: str) -> None:
    content, expected = FEATURES[name]
    path = tmp_path / name
    put(path, content)
    if isinstance(expected, str):
        with pytest.raises(InputError) as refused:
            judge(path)
        assert str(refused.value).replace(str(path), "FILE") == expected
        return
    with closing(open_features(path)) as source:
        assert words_in(source.labels(), source.place, source.class_names) == expected
        rows, later = (source.rows(start, source.n) for start in (0, 1))
        found, again = (
            part.toarray() if sparse.issparse(part) else np.asarray(part) for part in (rows, later)
        )
    assert found.shape == (len(expected or X), 2)
    np.testing.assert_array_equal(again, found[1:])
    if found[0, 0] == 1.5:
        np.testing.assert_array_equal(found[:3].round(), X.round())


def test_a_pattern_leaves_parts_out_only_where_it_names_them(tmp_path: Path) -> None:
    put(tmp_path / "some", {f"train-0000{part}-of-00003.npy": X[part : part + 1] for part in (0, 2)})
    with pytest.raises(
        InputError, match=r"train-\*: part 1 of 3 is missing, train-00001-of-00003: bring back"
    ):
        open_features(tmp_path / "some" / "train-*")
    for names, rows in (("train-0000[02]*", 2), ("train-00002-of-00003.npy", 1)):
        with closing(open_features(tmp_path / "some" / names)) as source:
            assert source.n == rows


#: Files of labels for three rows: words, or the sentence.
LABELS: Mapping[str, tuple[Any, list[str] | str]] = {
    "y.npy": (Y, AB),
    "column.npy": (np.array([[0.0], [1.0], [0.0]]), ["0", "1", "0"]),
    "y.npz": ({"only": Y}, AB),
    "y.h5": ({"labels": Y.astype("S")}, AB),
    "y.safetensors": ({"labels": np.array([0, 1, 0])}, ["0", "1", "0"]),
    "Y.NPZ": ({"only": Y}, AB),
    "part.csv": ("cat\ndog;puppy\ncat\n", ["cat", "dog;puppy", "cat"]),
    "y.parquet": ({"label": AB, "more": [1, 2, 3]}, AB),
    "y.txt": ("a\nb\na\n", AB),
    "y.csv": ("id,label\n7,a\n8,b\n9,a\n", AB),
    "bom.csv": ("\ufeffid;label\n7;a\n8;b\n9;a\n", AB),
    "tabs.csv": ("id\tlabel\n7\ta\n8\tb\n9\ta\n", AB),
    "head.csv": ("species\na\nb\na\n", AB),
    "bare.csv": ("a\nb\na\n", AB),
    "quoted.csv": ('"Doe, John"\n"Roe, Ann"\n"Doe, John"\n', ["Doe, John", "Roe, Ann", "Doe, John"]),
    "y.TSV": ("Doe, John\nRoe, Ann\nPoe\n", ["Doe, John", "Roe, Ann", "Poe"]),
    "shards": ({"y_2.npy": Y[1:], "y_1.npy": Y[:1]}, AB),
    "some": ({"y-00001-of-00002.npy": Y}, f"FILE: part 0 of 2 is missing, y-00000-of-00002: {BRACKETS}"),
    "objects.npy": (
        Y.astype(object),
        (
            "FILE cannot be read as a NumPy array of numbers: it holds Python objects, and"
            " reading those can run code: save .astype(str), or numbers"
        ),
    ),
    "two.npz": ({"sort": Y, "kind": Y}, "FILE has the arrays sort, kind: name one of them labels"),
    "empty.csv": ("", "FILE is empty, without a byte: write it again"),
    "columns.csv": (
        "id;Klasse\n1;a\n2;b\n3;a\n",
        (
            "FILE has the columns id, Klasse: name one of them labels; if these are values, not"
            " names, put a line of names above them"
        ),
    ),
    "short.csv": ("id,label\n1,a\n2\n3,a\n", "FILE has no label in row 1: give each row one"),
    "wide.csv": (
        "label\na\n".encode("utf-16"),
        "FILE cannot be read: it is no UTF-8 text: save it with that encoding",
    ),
    "packed.csv.gz": (gzip.compress(b"a\n"), "FILE is gzipped, which only features may be: unpack it"),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_are_read_as_they_are_meant_or_refused(tmp_path: Path, name: str) -> None:
    content, expected = LABELS[name]
    put(tmp_path / name, content)
    if isinstance(expected, str):
        with pytest.raises(InputError) as refused:
            label_words(read_labels(tmp_path / name, 3), str(tmp_path / name), None)
        assert str(refused.value).replace(str(tmp_path / name), "FILE") == expected
        return
    assert label_words(read_labels(tmp_path / name, 3), name, None) == expected
