"""Library, command line and workers run the same stages on the same rows, wherever these lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pipeline.small_data import make_features, write_dataset
from topline import MaxHinge, SolveResult, Status, open_store, solve
from topline.pipeline.options import ClusterConfig, TrainConfig
from topline.pipeline.rows import CachedRows, TrainingRows, Transforms
from topline.pipeline.training import train
from topline.solvers.blocks.ascent import rows as row_feed
from topline.solvers.core import rows as solver_rows
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import Dataset
from topline.storage.models import load_model

N, D, M, C = 1500, 16, 5, 0.3
#: The same operations in the same precision and order, on the same numbers.
SAME = {"rtol": 1e-6, "atol": 1e-9}


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are read in many slabs, of which none is held beyond its turn, and gathered a few at a time."""
    monkeypatch.setattr(solver_rows, "_SLAB_BYTES", 1 << 13)
    monkeypatch.setattr(row_feed, "_HELD_BYTES", 0)
    monkeypatch.setattr(row_feed, "_GATHERED_ROWS", 50)
    monkeypatch.setattr(row_feed, "_GATHERED_SPARSE_ROWS", 50)
    monkeypatch.setattr(row_feed, "_GATHERED_BYTES", 0)


def stored(folder: Path, *, sparse: bool = False, dtype: str = "float32") -> TrainingRows:
    """Training rows in shards of 128 whose labels no classifier explains: nearly all move in every round."""
    X, labels = make_features(N, D, M, noise=4.0)
    if sparse:
        X = solver_rows.sparse.csr_matrix(np.where(np.abs(X) > 0.8, X, 0.0).astype(np.float32))
    store = open_store(folder, create=True)
    split = np.zeros(N, dtype=np.int8)
    info = write_dataset(store, X, labels, split, plan=ChunkPlan(N, 32, 128), dtype=dtype, m=M)
    return TrainingRows(Dataset.open(store, info.id), "train")


def solved(X: Any, rows: TrainingRows) -> SolveResult:
    return solve(X, rows.labels(), MaxHinge(), 1.0 / (N * C), method="dual_ascent", m=M)


def in_memory(rows: TrainingRows) -> Any:
    values = rows[0:N]
    return values if solver_rows.is_sparse(values) else np.array(values)


def test_a_command_takes_the_passes_of_the_library_in_this_process_and_on_workers(tmp_path: Path) -> None:
    rows = stored(tmp_path / "store")
    library = solved(in_memory(rows), rows)
    assert library.status is Status.SOLVED
    options = {"loss": "max_hinge", "method": "dual_ascent", "transforms": (), "C": C, "certify": False}
    for workers in (0, 1):
        config = TrainConfig(store=str(tmp_path / "store"), **options)
        trained = train(config, ClusterConfig(workers=workers, dashboard=False))
        assert trained.passes == library.passes
        np.testing.assert_allclose(load_model(trained.model).array("W"), library.W, **SAME)


@pytest.mark.parametrize("transforms", [(), ("l2",)], ids=str)
def test_rows_kept_as_half_floats_take_the_passes_of_an_array(tmp_path: Path, transforms: Any) -> None:
    """Those that are transformed lie in memory as they are stored, for only that fits the budget."""
    plain = stored(tmp_path / "store", dtype="float16")
    rows = TrainingRows(plain.dataset, "train", Transforms.fit(transforms, list))
    cached = CachedRows(rows, 2 * D * N)
    assert cached.keeps_stored == bool(transforms)
    library, kept = solved(in_memory(rows), rows), solved(cached, rows)
    assert kept.passes == library.passes
    np.testing.assert_allclose(kept.W, library.W, **SAME)


def test_sparse_rows_in_memory_take_the_passes_of_a_matrix(tmp_path: Path) -> None:
    rows = stored(tmp_path / "store", sparse=True)
    library, kept = solved(in_memory(rows), rows), solved(CachedRows(rows, 1 << 30), rows)
    assert kept.passes == library.passes
    np.testing.assert_allclose(kept.W, library.W, **SAME)


@pytest.mark.parametrize("budget", [0, 2 * D * N])
def test_rows_that_are_read_again_run_the_same_stages_in_another_order(tmp_path: Path, budget: int) -> None:
    """Slab after slab instead of a row from anywhere: that costs some passes, not many times as many."""
    rows = stored(tmp_path / "store")
    library, streamed = solved(in_memory(rows), rows), solved(CachedRows(rows, budget), rows)
    assert streamed.status is Status.SOLVED
    assert streamed.primal == pytest.approx(library.primal, rel=1e-3)
    assert streamed.passes < 2 * library.passes
