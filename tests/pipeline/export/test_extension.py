"""An export format in one file: what stands here is all that a new one needs.

The weights as a table that people read: a line a class, with its name, its bias and its weights.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.pipeline.small_data import small_dataset
from topline.pipeline.errors import ConfigError, PipelineError
from topline.pipeline.export import FORMATS, ExportFormat, export_format, register_format
from topline.pipeline.export.writing import export_model
from topline.pipeline.options.ingest import ExportOptions
from topline.pipeline.options.train import ClusterConfig, TrainConfig
from topline.pipeline.rows.stored_model import StoredModel
from topline.pipeline.training import train


def write_table(stored: StoredModel, path: Path, options: ExportOptions) -> None:
    W = stored.W if stored.transforms.steps else np.vstack([stored.W, np.zeros(stored.W.shape[1])])
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["class", "bias", *(f"w{j}" for j in range(len(W) - 1))])
        for name, column in zip(stored.model.record.class_names, W.T.tolist(), strict=True):
            table.writerow([name, column[-1], *column[:-1]])


def table_scores(path: Path, rows: NDArray[np.float32]) -> NDArray[Any]:
    table = np.loadtxt(path, delimiter=",", skiprows=1, usecols=range(1, rows.shape[1] + 2), ndmin=2)
    return np.asarray(rows @ table[:, 1:].T + table[:, 0])


CSV = ExportFormat(
    name="csv", write=write_table, scores=table_scores, transforms=frozenset({"bias"}), multilabel=False
)


@pytest.fixture
def csv_format() -> Iterator[ExportFormat]:
    register_format(CSV)
    yield CSV
    del FORMATS[CSV.name]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("tables") / "store")
    small_dataset(Path(folder), n=200)
    for transforms in ("bias", "l2,bias"):
        config = TrainConfig(store=folder, k=2, tol=0.1, transforms=transforms, method="fw")
        train(config, ClusterConfig(workers=0))
    return folder


@pytest.mark.usefixtures("csv_format")
def test_the_command_exports_in_it(
    store: str, tmp_path: Path, topline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = topline.printed("export", f"{store}/models/m0001", "--format", "csv")
    assert (found["format"], found["path"], found["dataset_rows"]) == ("csv", "m0001.csv", 200)
    assert found["largest_difference"] < 1e-5
    lines = (tmp_path / "m0001.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("class,bias,w0,w1")
    assert len(lines) == 1 + 5


@pytest.mark.usefixtures("csv_format")
def test_what_it_cannot_hold_is_refused(store: str, tmp_path: Path) -> None:
    refused = "m0002 has the transform l2, which csv cannot hold: export it as npz or onnx or safetensors"
    with pytest.raises(ConfigError, match=refused):
        export_model(f"{store}/models/m0002", tmp_path / "m.csv", "csv")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="'csv' already"):
        register_format(CSV)
    with pytest.raises(ConfigError, match="use one of npz, onnx, safetensors, sklearn, csv"):
        export_format("xml")


def test_what_it_loses_is_not_kept(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of two digits are not the model's."""
    rounded = ExportFormat(
        name="rounded",
        write=lambda stored, path, _: np.savetxt(path, stored.W, fmt="%.1f", delimiter=","),
        scores=lambda path, rows: (
            np.column_stack([rows, np.ones(len(rows))]) @ np.loadtxt(path, delimiter=",")
        ),
        transforms=frozenset({"bias"}),
    )
    monkeypatch.setitem(FORMATS, "rounded", rounded)
    with pytest.raises(PipelineError, match=r"differ from those of model m0001 by .*: it was not kept"):
        export_model(f"{store}/models/m0001", tmp_path / "m.txt", "rounded")
    assert not list(tmp_path.iterdir())
