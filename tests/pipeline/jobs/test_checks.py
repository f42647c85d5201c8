"""A whole job refuses what cannot work before it reads an image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.pictures import write_classes
from topline.pipeline.cli import main
from topline.pipeline.errors import ConfigError
from topline.pipeline.images import ImageItem
from topline.pipeline.jobs import retrain, run
from topline.pipeline.options import ClusterConfig, ExtractConfig, RetrainConfig, RunConfig, TrainConfig
from topline.storage.datasets import list_datasets
from topline.storage.stores import open_store


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three classes of four photographs, of which none may be read."""
    write_classes(tmp_path / "photos", 3, 4)
    monkeypatch.setattr(ImageItem, "read", lambda *_: pytest.fail("an image was read"))
    return tmp_path / "photos"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--loss", "max_hinge", "--method", "lbfgs"], "the method lbfgs needs a smooth loss"),
        (["--method", "newtonn"], "there is no method named 'newtonn'"),
        (["--loss", "topk_hing"], "there is no loss named 'topk_hing'"),
        (["--loss", "softmax", "--smoothing", "0.1"], "the loss softmax is smooth as it is"),
        (["--k", "4"], "k"),
        (["--loss", "topk_entropy", "--k", "3", "--method", "lbfgs"], "k"),
        (["--loss", "multilabel_hinge"], "is for rows with several labels, and the images have one per row"),
        (["--loss", "structured_hinge", "--margins", "gone.npy"], "margins gone.npy cannot be read"),
        (["--average-top", "100"], "average_top 100 is 100 of 12 training rows"),
        (["--average-top", "2", "--kernel", "rbf"], "does not go with kernel rbf"),
        (["--kernel", "rbf", "--no-keep-duals"], "a model with a kernel is made of its dual variables"),
        (["--keep-duals", "--method", "fw_away"], "leave keep_duals out"),
        (["--transforms", "l3"], "there is no transform 'l3'"),
        (["--backbone", "sift"], "there is no backbone 'sift'"),
        (["--backbone", "onnx:gone.onnx"], "there is no network"),
        (["--mean", "0,0,0"], "--mean is about a network that is not named"),
        (["--memory-limit", "much"], "memory limit 'much' is not a size"),
        (["--start-from", "m0007"], "there is no store"),
        (["--auto", "--kernel", "rbf"], "leave out --kernel or --auto"),
        (["--for", "top-0"], "--for 'top-0' is not usable: use top-1, another number of guesses"),
        (["--for", "top-3"], "--for top-3 is always right of 3 classes: use a smaller number"),
        (["--report", f"{__file__}/report.html"], "report.html cannot be written: name a file in a folder"),
    ],
)
def test_a_run_that_cannot_end_well_does_not_begin(
    photos: Path,
    tmp_path: Path,
    flags: list[str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = tmp_path / "store"
    with pytest.raises(SystemExit) as ended:
        main(["run", "--images", str(photos), "--store", str(store), *flags])
    assert ended.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert sentence in lines[0]
    assert not list_datasets(open_store(str(store), create=True))


def test_one_class_is_no_problem_to_train_on(tmp_path: Path, photos: Path) -> None:
    extract = ExtractConfig(images=str(photos / "class0"))
    with pytest.raises(ValueError, match="the images are of 1 class, and at least 2 are needed"):
        run(RunConfig(store=str(tmp_path / "store"), extract=extract), ClusterConfig(workers=0))


def test_retraining_is_checked_too(tmp_path: Path, photos: Path) -> None:
    options: dict[str, Any] = {"store": str(tmp_path / "store"), "extract": ExtractConfig(images=str(photos))}
    with pytest.raises(ValueError, match="the method lbfgs needs a smooth loss"):
        retrain(RetrainConfig(**options, train=TrainConfig(loss="max_hinge", method="lbfgs")))
    with pytest.raises(ConfigError, match="memory limit 'much'"):
        retrain(RetrainConfig(**options), ClusterConfig(memory_limit="much"))


def test_labels_of_a_table_are_split_before_they_are_counted(
    tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = photos / "table.csv"
    rows = [f"class0/{i:03d}.png,{label}" for i, label in enumerate(["sea;sky", "sky", "sea", "sky;town"])]
    table.write_text("path,label\n" + "\n".join(rows), encoding="utf-8")
    images = ["--images", str(table), "--label-separator", ";", "--store", str(tmp_path / "store")]
    for flags, sentence in (
        ([], "the images have rows with several labels, and the loss softmax is for one per row"),
        (["--loss", "multilabel_hinge", "--method", "lbfgs"], "the method lbfgs needs a smooth loss"),
        (["--loss", "multilabel_hinge", "--class-weight", "balanced"], "no class to be weighted by"),
    ):
        with pytest.raises(SystemExit):
            main(["run", *images, *flags])
        assert sentence in capsys.readouterr().err
