"""Folders of clip-retrieval: rows are named by their metadata, apart even where two tables share a name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from topline.pipeline.errors import InputError
from topline.pipeline.readers import open_features


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


@pytest.mark.parametrize(
    ("gone", "sentence"),
    [
        (("img_emb/img_emb_0.npy", "metadata/metadata_2.parquet"), "without its counterpart"),
        (("metadata/metadata_1.parquet",), "has img_emb/img_emb_1.npy without its counterpart"),
        ((), "metadata_1.parquet has 3 rows, and img_emb_1.npy 2: they must agree"),
    ],
)
def test_arrays_and_tables_are_joined_by_their_numbers(
    tmp_path: Path, gone: tuple[str, ...], sentence: str
) -> None:
    """As many rows in all are not enough: labels would be those of other rows."""
    for name in ("img_emb", "metadata"):
        (tmp_path / name).mkdir()
    for place, rows in enumerate((2, 2, 2) if gone else (3, 2, 3)):
        np.save(tmp_path / f"img_emb/img_emb_{place}.npy", np.ones((rows, 3), dtype=np.float32))
    for place, rows in enumerate((2, 2, 2) if gone else (3, 3, 2)):
        table = pa.table({"label": [f"c{place}"] * rows})
        pq.write_table(table, tmp_path / f"metadata/metadata_{place}.parquet")
    for name in gone:
        (tmp_path / name).unlink()
    with pytest.raises(InputError, match=sentence):
        open_features(tmp_path)
