"""A smooth loss on wide rows: library and command take the same method."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.pipeline.small_data import write_dataset
from tests.solvers.methods.test_auto_wide import M, N, activations
from topline import Softmax, solve
from topline.pipeline.options import TrainConfig
from topline.pipeline.training.plan import plan_training
from topline.storage.arrays import ChunkPlan
from topline.storage.stores import open_store


def test_a_command_takes_the_method_of_the_library(tmp_path: Path) -> None:
    X, y = activations()
    store = open_store(tmp_path / "store", create=True)
    write_dataset(store, X, y, np.zeros(N, dtype=np.int8), plan=ChunkPlan(N, 128, 256), key="now", m=M)
    config = TrainConfig(store=str(tmp_path / "store"), loss="softmax", C=4.0, transforms=())
    library, choice = solve(X, y, Softmax(), 0.25 / N), plan_training(config).choice
    assert (choice.method, choice.why) == (library.method, library.why)
