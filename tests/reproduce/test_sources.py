from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from scipy import io, sparse

from tests.reproduce import SOURCES, DataFiles, formats
from topline.pipeline.errors import InputError


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_labels_first_are_numbered_in_their_order(tmp_path: Path) -> None:
    found = formats.label_first(written(tmp_path / "a", "3 0.5 -1\n1 0 2\n3 1 1\n"), "rows", 2)
    np.testing.assert_array_equal(found.X, [[0.5, -1.0], [0.0, 2.0], [1.0, 1.0]])
    np.testing.assert_array_equal(found.y, [1, 0, 1])
    assert found.m == 2


def test_tables_with_heads(tmp_path: Path) -> None:
    found = formats.target_table(written(tmp_path / "a", "x\ty\ttarget\n1\t2\t-1\n3\t4\t1\n"), "a table", 2)
    np.testing.assert_array_equal(found.X, [[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(found.y, [0, 1])
    found = formats.last_column_csv(written(tmp_path / "b", "x,medv\n1.5,24\n2,21.6\n"), "a table", 1)
    np.testing.assert_array_equal(found.y, [24.0, 21.6])
    for head in ("a b Target\n", ""):
        found = formats.statlog(written(tmp_path / "c", f"{head}1 6 2\n 2 7 1\n"), "a table", 2)
        np.testing.assert_array_equal(found.X, [[1.0, 6.0], [2.0, 7.0]])
        np.testing.assert_array_equal(found.y, [1, 0])


def test_sexes_of_abalone_and_categories_of_monks(tmp_path: Path) -> None:
    rows = "M,0.455,0.365,0.095,0.514,0.2245,0.101,0.15,15\nI,0.33,0.255,0.08,0.205,0.0895,0.0395,0.055,7\n"
    found = formats.abalone(written(tmp_path / "a", rows), "abalone", 8)
    np.testing.assert_array_equal(found.X[:, 0], [-1.0, 1.0])
    np.testing.assert_array_equal(found.y, [15.0, 7.0])
    text = "@relation ' '\n@attribute class {0,1}\n@attribute a {1,2}\n@data\n1,2\n0,1\n"
    found = formats.class_first_arff(written(tmp_path / "b", text), "ARFF", 1)
    np.testing.assert_array_equal(found.X, [[2.0], [1.0]])
    np.testing.assert_array_equal(found.y, [1, 0])


def test_keel_skips_its_head_and_a_stray_line(tmp_path: Path) -> None:
    head = "@relation t\n@attribute Class real[-1.87,0.965]\n@data\nClass,Sex,Survived\n"
    text = f"{head}-1.87,0.521,-1.0\n0.9,1,1.0\n"
    found = formats.keel(written(tmp_path / "t.dat", text), "KEEL", 2)
    np.testing.assert_array_equal(found.X, [[-1.87, 0.521], [0.9, 1.0]])
    np.testing.assert_array_equal(found.y, [0, 1])


def test_libsvm_rows_are_filled_with_zeros(tmp_path: Path) -> None:
    found = formats.libsvm_rows(written(tmp_path / "a", "90 1:0.5 3:2\n88 2:-1\n"), "rows", 3)
    np.testing.assert_array_equal(found.X, [[0.5, 0.0, 2.0], [0.0, -1.0, 0.0]])
    np.testing.assert_array_equal(found.y, [90.0, 88.0])


def test_digits_and_word_counts_of_npz_files(tmp_path: Path) -> None:
    X = np.array([[-1000, 500]], dtype=np.int16)
    np.savez(tmp_path / "u.npz", X_train=X, y_train=[3], X_test=-X, y_test=[8])
    found = formats.usps_digits(tmp_path / "u.npz", "USPS", 2)
    np.testing.assert_array_equal(found.X, [[-1.0, 0.5], [1.0, -0.5]])
    assert found.parts == (1, 1)
    counts = sparse.csr_matrix(np.array([[0, 2], [3, 0]], dtype=np.uint16))
    parts = {"data": counts.data, "indices": counts.indices, "indptr": counts.indptr, "shape": [2, 2]}
    np.savez(tmp_path / "n.npz", **parts, y=[1, 0])
    found = formats.word_counts(tmp_path / "n.npz", "counts", 1)
    np.testing.assert_array_equal(found.X.toarray(), [[0.0, 2.0], [3.0, 0.0]])


def test_several_labels_come_in_the_order_of_the_xml_file(tmp_path: Path) -> None:
    attributes = "@attribute f numeric\n@attribute sad {0,1}\n@attribute calm {0,1}\n"
    arff = written(tmp_path / "e.arff", f"@relation e\n{attributes}@data\n0.5,1,0\n2,1,1\n")
    xml = written(tmp_path / "e.xml", '<labels><label name="calm"/><label name="sad"/></labels>')
    found = formats.several_labels(arff, xml, 1)
    np.testing.assert_array_equal(found.X.toarray(), [[0.5], [2.0]])
    np.testing.assert_array_equal(found.y, [[0, 1], [1, 1]])
    assert found.m == 2
    with pytest.raises(InputError, match="has 1 features where 2 are expected"):
        formats.several_labels(arff, xml, 2)


def test_digits_of_idx_files(tmp_path: Path) -> None:
    images = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    head = b"\x00\x00\x08\x03" + np.array([3, 2, 2], ">i4").tobytes()
    (tmp_path / "images").write_bytes(gzip.compress(head + images.tobytes()))
    (tmp_path / "labels").write_bytes(b"\x00\x00\x08\x01\x00\x00\x00\x03" + bytes((7, 0, 7)))
    X, y = (formats.idx_array(tmp_path / name, "MNIST", 4) for name in ("images", "labels"))
    np.testing.assert_array_equal(X, images)
    found = formats.mnist_digits([X, y, X[:1], y[:1]], 4)
    np.testing.assert_allclose(found.X, np.vstack([images.reshape(3, 4), images[:1].reshape(1, 4)]) / 255.0)
    np.testing.assert_array_equal(found.y, [1, 0, 1, 1])
    assert found.parts == (3, 1)
    with pytest.raises(InputError, match="images, labels, images, labels fit"):
        formats.mnist_digits([X, y[:2]], 4)
    (tmp_path / "short").write_bytes(head + images.tobytes()[:-1])
    with pytest.raises(InputError, match="holds 11 bytes where its sizes"):
        formats.idx_array(tmp_path / "short", "MNIST", 4)


def test_points_with_signs_of_a_mat_file(tmp_path: Path) -> None:
    X = np.array([[0.5, -1.0], [2.0, 2.5], [1.0, 0.0]])
    signs = np.array([[1], [-1], [1]], dtype=np.int16)
    io.savemat(tmp_path / "a.mat", {"x": X, "y": signs, "w_bayes": np.ones((1, 3)), "bayes_error": 1e-4})
    found = formats.points_and_signs(tmp_path / "a.mat", "points", 2)
    np.testing.assert_array_equal(found.X, X)
    np.testing.assert_array_equal(found.y, [1.0, -1.0, 1.0])
    for wrong in ({"x": X, "y": signs[:2]}, {"x": X, "y": 3 * signs}, {"y": signs}):
        io.savemat(tmp_path / "b.mat", wrong)
        with pytest.raises(InputError, match="is not readable as points"):
            formats.points_and_signs(tmp_path / "b.mat", "points", 2)


@pytest.mark.parametrize("name", SOURCES)
def test_what_cannot_be_read_is_told_in_one_sentence(name: str, stand_ins: Path, tmp_path: Path) -> None:
    source = SOURCES[name]
    for file in source.files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(gzip.compress(b"<html>404: not found</html>\n"))
    with pytest.raises(InputError) as refused:
        DataFiles((tmp_path,)).load(name)
    message = str(refused.value)
    assert Path(source.files[0]).name in message or Path(source.files[-1]).name in message
    assert "\n" not in message
    loaded = DataFiles((stand_ins,)).load(name)
    assert loaded.X.shape[0] == len(loaded.y) > 0
    assert loaded.X.shape[1] >= source.d


@pytest.mark.parametrize("name", SOURCES)
def test_a_missing_file_is_named_with_where_copies_come_from(name: str, tmp_path: Path) -> None:
    source = SOURCES[name]
    with pytest.raises(InputError) as refused:
        DataFiles((tmp_path,)).find(name)
    assert source.files[0] in str(refused.value)
    assert source.origin in str(refused.value)
    assert not DataFiles((tmp_path,)).has(name)


def test_files_are_found_in_folders_unpacked_or_given_one_by_one(stand_ins: Path, tmp_path: Path) -> None:
    packed = stand_ins / "german" / "german.data-numeric.gz"
    plain = tmp_path / "german.data-numeric"
    plain.write_bytes(gzip.decompress(packed.read_bytes()))
    expected = DataFiles((stand_ins,)).load("german").X
    for places in ((tmp_path,), (plain,), (packed,), (stand_ins / "german",), (tmp_path / "none", plain)):
        np.testing.assert_array_equal(DataFiles(places).load("german").X, expected)
    # A file of any name serves where a table needs one file only.
    renamed = plain.rename(tmp_path / "credit.txt")
    np.testing.assert_array_equal(DataFiles((renamed,)).load("german", alone=True).X, expected)
    assert not DataFiles((renamed,)).has("german")
    with pytest.raises(InputError, match="does not exist"):
        DataFiles((tmp_path / "none",)).check()


def test_letter_wants_all_of_its_rows(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("1 " + " ".join(["0"] * 16) + "\n")
    with pytest.raises(InputError, match="has 1 rows; letter"):
        DataFiles((tmp_path / "letter.txt",)).load("letter", alone=True)


@pytest.mark.data
@pytest.mark.parametrize("name", SOURCES)
def test_public_files_have_the_sizes_of_their_sources(name: str, shared_data: Path) -> None:
    """Sizes as UCI, LIBSVM, KEEL and Mulan print them."""
    sizes = {
        "letter": 20_000, "aloi": 108_000, "usps": 9_298, "mnist": 70_000, "optdigits": 5_620,
        "news20": 19_997,
        "australian": 690, "spambase": 4_601, "german": 1_000, "titanic": 2_201, "housing": 506,
        "abalone": 4_177,
        "emotions": 593, "yeast": 2_417, "enron": 1_702, "bibtex": 7_395, "monks": 554, "splice": 3_188,
        "scene": 2_407, "medical": 978, "corel5k": 5_000, "splice_libsvm": 1_000,
        "toy_multimodal": 200, "toy_imbalanced": 200,
    }  # fmt: skip
    files = DataFiles((shared_data,))
    if not files.has(name):
        pytest.skip(f"no {name} at {shared_data / SOURCES[name].files[0]}: see --list for copies")
    assert len(files.load(name).y) == sizes[name]
