"""Files without a byte, without an array and without a row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from topline.pipeline.errors import InputError
from topline.pipeline.readers import open_features, read_labels


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.csv", "x.parquet", "x.txt"])
@pytest.mark.parametrize("read", [open_features, read_labels])
def test_a_file_without_a_byte_is_said_to_be_empty(
    tmp_path: Path, name: str, read: Callable[[Path], object]
) -> None:
    (tmp_path / name).touch()
    with pytest.raises(InputError, match=rf"{name} is empty, without a byte: write it again"):
        read(tmp_path / name)


def test_arrays_without_rows_and_archives_without_arrays_are_named(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((0, 5), dtype=np.float32))
    np.savez(tmp_path / "none.npz")
    with pytest.raises(InputError, match=r"rows\.npy has no rows: its shape is \(0, 5\)"):
        open_features(tmp_path / "rows.npy")
    for read in (open_features, read_labels):
        with pytest.raises(InputError, match=r"none\.npz holds no array"):
            read(tmp_path / "none.npz")


def test_columns_between_semicolons_are_not_read_as_one(tmp_path: Path) -> None:
    """As a spreadsheet writes them, with a byte order mark: each line would be a class of its own."""
    place = tmp_path / "labels.csv"
    place.write_text("id;Klasse\n" + "".join(f"r{i};cat\n" for i in range(6)), encoding="utf-8-sig")
    with pytest.raises(InputError, match=r"has the columns id, Klasse: name one of them label"):
        read_labels(place, 6)
    assert read_labels(place, 6, "Klasse").tolist() == ["cat"] * 6
    with pytest.raises(InputError, match="has no column 'klasse': did you mean 'Klasse'"):
        read_labels(place, 6, "klasse")
    place.write_text('id;Klasse\n1;cat\n2;"dog;puppy"\n', encoding="utf-8")
    with pytest.raises(InputError, match="has the columns id, Klasse"):
        read_labels(place, 2)
    place.write_text("cat\ndog;puppy\n", encoding="utf-8")
    assert read_labels(place, 2).tolist() == ["cat", "dog;puppy"]


def test_marks_within_the_only_column_part_no_columns(tmp_path: Path) -> None:
    place = tmp_path / "labels.csv"
    place.write_text('"Doe, John"\n"Roe, Ann"\n', encoding="utf-8")
    assert read_labels(place, 2).tolist() == ["Doe, John", "Roe, Ann"]
    tabbed = tmp_path / "labels.TSV"
    tabbed.write_text("Doe, John\nRoe, Ann\n", encoding="utf-8")
    assert read_labels(tabbed, 2).tolist() == ["Doe, John", "Roe, Ann"]
    tabbed.write_text("id, kind\n1, cat\n2, dog\n", encoding="utf-8")
    with pytest.raises(InputError, match="has the columns id, kind"):
        read_labels(tabbed, 2)
    place.write_text("cat;dog\ndog;cow\n", encoding="utf-8")
    assert read_labels(place, 2, separator=";").tolist() == ["cat;dog", "dog;cow"]


def test_suffixes_in_capitals_mean_the_same(tmp_path: Path) -> None:
    (tmp_path / "labels.CSV").write_text("id,kind\n1,cat\n2,dog\n", encoding="utf-8")
    assert read_labels(tmp_path / "labels.CSV", 2, "kind").tolist() == ["cat", "dog"]
    np.save(tmp_path / "labels.npy", [3, 1])
    (tmp_path / "labels.npy").rename(tmp_path / "labels.NPY")
    assert read_labels(tmp_path / "labels.NPY", 2).tolist() == [3, 1]
    np.savez(tmp_path / "labels.npz", kind=[3, 1], other=[0, 0])
    (tmp_path / "labels.npz").rename(tmp_path / "labels.NPZ")
    assert read_labels(tmp_path / "labels.NPZ", 2, "kind").tolist() == [3, 1]


def test_text_in_another_encoding_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("label\ncat\n", encoding="utf-16")
    with pytest.raises(
        InputError, match=r"labels.csv cannot be read: it is no UTF-8 text: save it with that"
    ):
        read_labels(tmp_path / "labels.csv")
