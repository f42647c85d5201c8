"""What a sweep puts out, beside an exhaustive search of the same folds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.pipeline.small_data import write_dataset
from topline import Softmax, TopKHinge, solve
from topline.pipeline.options.sweep import SweepConfig
from topline.pipeline.options.train import ClusterConfig
from topline.pipeline.sweep import sweep
from topline.pipeline.sweep.plan import FoldSource, fold_data, forget_folds
from topline.storage.stores import open_store

LOSSES = {"softmax": Softmax(), "topk_hinge": TopKHinge(2)}
GRID, TOL, FOLDS = (0.01, 0.03, 0.1, 1.0, 10.0), 1e-4, 3


def overlapping(seed: int):
    """Make half-empty rows of unit length of five classes that come apart for one row in two."""
    rng = np.random.default_rng(seed)
    y = rng.integers(5, size=450)
    X = np.maximum(rng.normal(size=(450, 16)) + 0.4 * rng.normal(size=(5, 16))[y], 0.0) + 1e-3
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32), y.astype(np.int32)


@pytest.mark.parametrize("seed", range(3))
def test_no_cell_is_put_out_that_an_exhaustive_search_finds_better(seed: int, tmp_path: Path) -> None:
    """Every cell on every fold is solved from zero here; what was put out had about these accuracies."""
    X, y = overlapping(seed)
    write_dataset(open_store(tmp_path, create=True), X, y, np.zeros(len(y), dtype=np.int8))
    config = SweepConfig(
        store=str(tmp_path), C=GRID, loss=tuple(LOSSES), k=(2,), topk=1, folds=FOLDS, tol=TOL
    )
    result = sweep(config, ClusterConfig(workers=0))
    source = FoldSource(str(tmp_path), result.dataset, FOLDS, 0, None, ("l2", "bias"))
    shares = {}
    for fold in range(FOLDS):
        data = fold_data(source, fold)
        for cell in result.cells:
            fit = solve(data.X, data.y, LOSSES[cell.loss], 1.0 / (len(data.y) * cell.C), tol=TOL, m=data.m)
            right = (data.held_out.astype(float) @ fit.W).argmax(axis=1) == data.held_out_y
            shares.setdefault(cell, []).append(right.mean())
    forget_folds()
    error = 0.5 / np.sqrt(len(y))
    best = np.mean(shares[result.best])
    for cell, exact in shares.items():
        # Those with few looks are known from the first fold alone, to some rows in a hundred.
        assert cell.mean == pytest.approx(exact[0] if cell.state == "pruned" else np.mean(exact), abs=0.1)
        assert np.mean(exact) <= best + 2.0 * error
    assert {cell.state for cell in result.cells} == {"finished", "pruned"}
