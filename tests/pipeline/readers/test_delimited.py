"""Text tables of features as spreadsheets and data frames write them; names of rows in several tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from topline.pipeline.errors import InputError
from topline.pipeline.readers import class_words, columns, open_features, row_weights

X = np.array([[1.5, -2.0, 3e-3], [4.0, 5.25, 6.0], [7.0, 8.0, 9.5]])
WORDS = ["a", "b", "a"]


def written(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def frame() -> pd.DataFrame:
    return pd.DataFrame(X, columns=["w", "h", "z"]).assign(label=WORDS)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"index": False},
        {"sep": ";", "index": False},
        {"sep": ";", "decimal": ","},
        {"sep": "\t", "index": False},
        {"sep": "\t", "decimal": ","},
        {"sep": ";", "decimal": ",", "quoting": 1, "index": False},
        {"index": False, "encoding": "utf-8-sig"},
        {"index": False, "quoting": 1},
        {"index": False, "lineterminator": "\r\n"},
    ],
)
def test_a_data_frame_comes_back(tmp_path: Path, options: dict[str, object]) -> None:
    frame().to_csv(tmp_path / "t.csv", **options)
    source = open_features(tmp_path / "t.csv")
    assert (source.n, source.d, source.columns) == (3, 3, ["w", "h", "z"])
    np.testing.assert_array_equal(source.rows(0, 3), X)
    labels = source.labels()
    assert labels.tolist() == WORDS
    assert (source.ids(), source.splits(), list(source.left_out())) == (None, None, [])


@pytest.mark.parametrize("name", ["t.csv", "t.arff"])
def test_names_and_groups_that_look_like_fractions_stay_as_they_are_written(
    tmp_path: Path, name: str
) -> None:
    head = "sample_id,patient,a,label\n"
    if name == "t.arff":
        values = "@attribute sample_id {1.1,1.10,2.0}\n@attribute patient {1e3,1000.0,1.50}\n"
        head = f"@relation r\n{values}@attribute a numeric\n@attribute label {{1.0,2.0}}\n@data\n"
    written(tmp_path, head + "1.1,1e3,4,1.0\n1.10,1000.0,5,2.0\n2.0,1.50,6,1.0\n", name)
    source = open_features(tmp_path / name, beside=("patient",))
    assert source.ids() == ["1.1", "1.10", "2.0"]
    assert source.column("patient").tolist() == ["1e3", "1000.0", "1.50"]
    found = source.labels()
    assert class_words(found.tolist(), "t") == ["1", "2", "1"]


@pytest.mark.parametrize(("name", "mark"), [("t.csv", ","), ("t.csv", ";"), ("t.tsv", "\t")])
def test_a_table_without_names_has_numbered_columns(tmp_path: Path, name: str, mark: str) -> None:
    np.savetxt(tmp_path / name, X, delimiter=mark)
    source = open_features(tmp_path / name)
    assert (source.d, source.columns) == (3, None)
    np.testing.assert_array_equal(source.rows(0, 3), X)
    assert source.labels() is None
    chosen = open_features(tmp_path / name, None, "column 2")
    np.testing.assert_array_equal(chosen.rows(1, 3), X[1:, [0, 2]])
    labels = chosen.labels()
    assert labels is not None
    # All are numbers, and whole ones may be classes.
    assert [float(label) for label in labels] == X[:, 1].tolist()


def test_rows_are_read_in_blocks_whose_later_numbers_have_fractions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first block of the column has whole numbers alone, and of the labels numbers alone."""
    monkeypatch.setattr(columns, "_BLOCK_BYTES", 64)
    values = np.arange(400) + np.where(np.arange(400) < 200, 0.0, 0.5)
    labels = [str(row % 3) if row < 390 else "other" for row in range(400)]
    pd.DataFrame({"x": values, "label": labels}).to_csv(tmp_path / "t.csv", index=False, float_format="%g")
    source = open_features(tmp_path / "t.csv")
    assert source.n == 400
    for start, stop in [(0, 1), (1, 390), (390, 400), (3, 5)]:
        np.testing.assert_array_equal(source.rows(start, stop)[:, 0], values[start:stop])
    found = source.labels()
    assert found.tolist() == labels


def test_names_of_rows_splits_and_other_columns(tmp_path: Path) -> None:
    table = frame().assign(split=["train", "test", "train"], note=['say "x",\nor y', "", "z"])
    table.assign(sample_id=["r1", "r2", "r3"]).to_csv(tmp_path / "t.csv", index=False)
    source = open_features(tmp_path / "t.csv")
    splits = source.splits()
    assert (source.ids(), splits.tolist()) == (["r1", "r2", "r3"], ["train", "test", "train"])
    assert list(source.left_out()) == ["note"]
    table.set_axis(["a.jpg", "b.jpg", "c.jpg"]).to_csv(tmp_path / "t.csv")
    assert open_features(tmp_path / "t.csv").ids() == ["a.jpg", "b.jpg", "c.jpg"]
    table.set_axis(["a.jpg", "b.jpg", "a.jpg"]).to_csv(tmp_path / "t.csv")
    assert open_features(tmp_path / "t.csv").ids() is None


def test_a_word_in_a_later_block_of_numbers_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_BLOCK_BYTES", 64)
    path = written(tmp_path, "x,label\n" + "1.5,a\n" * 100 + " many ,a\n")
    source = open_features(path)
    with pytest.raises(
        InputError, match=r"t\.csv has 'many' in row 100 of the column 'x', and numbers above"
    ):
        source.rows(0, source.n)


@pytest.mark.parametrize("gap", ["", "NA", "NaN"])
def test_a_column_that_begins_late_is_refused_and_an_empty_one_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gap: str
) -> None:
    monkeypatch.setattr(columns, "_BLOCK_BYTES", 64)
    lines = [f"1.5,{gap},a\n"] * 100
    source = open_features(written(tmp_path, "".join(["x,z,label\n", *lines])))
    assert (source.columns, list(source.left_out())) == (["x"], ["z"])
    late = written(tmp_path, "".join(["x,z,label\n", *lines, "1.5,2,a\n"]))
    with pytest.raises(
        InputError, match="nothing in the column 'z' before row 100, and '2' there: fill it for"
    ):
        open_features(late)
    # A late text is no feature, as an early one.
    noted = open_features(written(tmp_path, "".join(["x,z,label\n", *lines, "1.5,a note,a\n"])))
    assert (noted.n, noted.columns, list(noted.left_out())) == (101, ["x"], ["z"])


def test_what_is_no_text_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"x,label\n\xff\xfe,a\n")
    with pytest.raises(InputError, match=r"cannot be read as CSV: it is no UTF-8 text"):
        open_features(tmp_path / "t.csv")
    with pytest.raises(InputError, match="--features-name x names nothing in"):
        open_features(written(tmp_path, "x,label\n1,a\n"), "x")


def test_spaces_around_names_and_commas_in_later_numbers_are_read(tmp_path: Path) -> None:
    source = open_features(written(tmp_path, "w; x; label\n1; 2; a\n3; 4,5; b\n"))
    assert source.columns == ["w", "x"]
    np.testing.assert_array_equal(source.rows(0, 2), [[1.0, 2.0], [3.0, 4.5]])
    labels = source.labels()
    assert labels.tolist() == ["a", "b"]
    assert open_features(written(tmp_path, " label,x\na,1\n"), None, "label").d == 1


def test_columns_that_a_data_frame_counts_are_names(tmp_path: Path) -> None:
    pd.DataFrame(X).to_csv(tmp_path / "t.csv", index=False)
    source = open_features(tmp_path / "t.csv")
    assert (source.n, source.columns) == (3, ["0", "1", "2"])


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (["c", "d"], ["a", "b", "c", "d"]),
        (["b", "d"], ["metadata_0/a", "metadata_0/b", "metadata_1/b", "metadata_1/d"]),
    ],
)
def test_names_that_two_tables_share_have_the_table_before_them(
    tmp_path: Path, second: list[str], expected: list[str]
) -> None:
    for name in ("img_emb", "metadata"):
        (tmp_path / name).mkdir()
    for place, names in enumerate((["a", "b"], second)):
        np.save(tmp_path / f"img_emb/img_emb_{place}.npy", np.full((2, 3), place, dtype=np.float32))
        pq.write_table(pa.table({"sample_id": names}), tmp_path / f"metadata/metadata_{place}.parquet")
    assert open_features(tmp_path).ids() == expected


def test_a_number_may_begin_or_end_with_its_point() -> None:
    assert row_weights([".5", "2.", "1e-1", "3"], "table").tolist() == [0.5, 2.0, 0.1, 3.0]
    with pytest.raises(InputError, match=r"no weight, a number from 0 on, in rows 0 \(\.\), 1 \(-1\)"):
        row_weights([".", "-1"], "table")
