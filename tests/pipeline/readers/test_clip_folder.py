"""Folders of clip-retrieval: rows are named by their metadata, apart even where two tables share a name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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
