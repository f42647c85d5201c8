"""Images with several labels each, from a table: their sets are stored, trained on and predicted."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from topline.pipeline.errors import ConfigError
from topline.pipeline.evaluation import MultilabelEvaluation
from topline.pipeline.ingest import extract
from topline.pipeline.jobs import retrain, run
from topline.pipeline.options import RetrainConfig, RunConfig
from topline.pipeline.options.ingest import ExtractConfig, PredictConfig
from topline.pipeline.options.train import ClusterConfig, TrainConfig
from topline.pipeline.prediction import predict
from topline.storage.datasets import Dataset, check_dataset
from topline.storage.stores import open_store

N = 40
HERE = ClusterConfig(workers=0)


def tagged(folder: Path) -> Path:
    """Pictures with bars; row 3 is a copy of row 2, row 4 is no image and row 5 has no label."""
    folder.mkdir(parents=True)
    rng, rows = np.random.default_rng(0), []
    for i in range(N):
        pixels = (rng.random((32, 32, 3)) * 40).astype(np.uint8)
        upright, flat = bool(i % 3), i % 4 < 2
        if upright:
            pixels[:, 4:9] = 250
        if flat:
            pixels[20:25] = 250
        words = ["upright, left"] * upright + ["flat"] * flat + ["any"]
        Image.fromarray(pixels).save(folder / f"{i:02d}.png")
        rows.append((f"{i:02d}.png", "; ".join(words), "test" if i % 5 == 1 else "train"))
    (folder / "03.png").write_bytes((folder / "02.png").read_bytes())
    (folder / "04.png").write_bytes(b"no image")
    rows[3], rows[5] = ("03.png", rows[2][1], "train"), ("05.png", "", "train")
    table = folder / "tags.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("path", "label", "split"), *rows])
    return table


def config(table: Path, store: Path, **options: str) -> ExtractConfig:
    return ExtractConfig.model_validate(
        {"images": str(table), "store": str(store), "label_separator": ";", "backbone": "hog:size=32,cells=4"}
        | options
    )


@pytest.mark.parametrize("duplicates", ["drop", "keep"])
def test_tags_of_a_table_become_label_sets(tmp_path: Path, duplicates: str) -> None:
    table = tagged(tmp_path / "images")
    result = extract(config(table, tmp_path / "store", duplicates=duplicates), HERE)
    dataset = Dataset.open(open_store(tmp_path / "store"))
    assert dataset.class_names == ("any", "flat", "upright, left")
    assert result.info.label_sets == 4
    known = {row["path"]: row for row in dataset.manifest().to_pylist()}
    assert known["01.png"]["class_name"] == "any, flat, upright, left"
    assert known["03.png"]["class_name"] == ("any, upright, left" if duplicates == "keep" else None)
    splits = [known[name]["split"] for name in ("01.png", "04.png", "05.png")]
    assert splits == ["test", "rejected", "rejected"]
    assert "has no label" in known["05.png"]["error"]
    assert check_dataset(dataset, deep=True) == []


def test_one_command_trains_measures_and_reports(tmp_path: Path) -> None:
    table = tagged(tmp_path / "images")
    job = RunConfig(
        store=str(tmp_path / "store"),
        extract=config(table, tmp_path / "store"),
        train=TrainConfig(loss="multilabel_hinge", smoothing=1.0),
    )
    done = run(job, HERE)
    assert isinstance(done.evaluation, MultilabelEvaluation)
    assert done.to_dict()["metrics"]["rank_loss"] == done.evaluation.rank_loss < 0.1
    assert done.train.certificate is not None
    assert done.train.certificate.certified
    assert "Labels, worst first" in Path(done.report).read_text(encoding="utf-8")
    found = predict(done.train.model, PredictConfig(images=str(table.parent)))
    labels = {one.sample: set(one.labels) for one in found.predictions if one.status == "ok"}
    right = 0
    for i in range(6, N):
        words = {"any"} | ({"upright, left"} if i % 3 else set()) | ({"flat"} if i % 4 < 2 else set())
        right += labels[f"{i:02d}.png"] == words
    assert right >= 0.8 * (N - 6)


def test_no_rule_compares_models_of_tags(tmp_path: Path) -> None:
    table = tagged(tmp_path / "images")
    options = RetrainConfig(store=str(tmp_path / "store"), extract=config(table, tmp_path / "store"))
    with pytest.raises(ConfigError, match="--label-separator gives images several labels"):
        retrain(options, HERE)
