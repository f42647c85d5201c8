from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import binomtest
from sklearn.metrics import confusion_matrix, recall_score

from tests.pipeline.pictures import write_classes
from tests.pipeline.small_data import small_dataset
from topline.pipeline.calibration import calibration_of
from topline.pipeline.evaluation import Evaluation, ranks_against_ties
from topline.pipeline.evaluation.confusions import GALLERY, IMAGES_PER_CLASS, WORST_CLASSES, images_to_show
from topline.pipeline.evaluation.measurement import evaluate
from topline.pipeline.ingest import extract
from topline.pipeline.options import ClusterConfig, ExtractConfig, TrainConfig
from topline.pipeline.report import render_report, write_report
from topline.pipeline.report.document import gather
from topline.pipeline.rows.stored_model import StoredModel
from topline.pipeline.training import train
from topline.storage.datasets import Dataset
from topline.storage.errors import AccessError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report") / "store"
    small_dataset(folder, n=400, m=8)
    trained = train(TrainConfig(store=str(folder), k=2, tol=0.05), ClusterConfig(workers=0))
    evaluate(trained.model)
    return trained.model


def red(_: object) -> np.ndarray:
    return np.full((8, 8, 3), (255, 0, 0), np.uint8)


def test_worst_classes_show_their_most_confident_confusions(model: str) -> None:
    stored = StoredModel.open(model)
    _, found = images_to_show(stored, stored.dataset().manifest(), red)
    assert 0 < len(found) <= WORST_CLASSES
    ends = [
        binomtest(round(part.topk[1] * part.rows), part.rows).proportion_ci(method="wilson").high
        for part in found
    ]
    assert ends == sorted(ends)
    rows = stored.rows("test")
    ids = np.asarray(stored.dataset().sample_ids())
    scores = np.asarray(rows[0 : len(rows)] @ stored.W)
    ranks = dict(zip(ids[rows.indices], ranks_against_ties(scores, rows.labels()), strict=True))
    labels = dict(zip(ids[rows.indices], rows.labels(), strict=True))
    names = stored.model.record.class_names
    for part in found:
        wrong = [name for name, label in labels.items() if names[label] == part.name and ranks[name] > 1]
        assert len(part.images) == min(len(wrong), IMAGES_PER_CLASS)
        for image in part.images:
            assert image.name in wrong
            assert image.rank == ranks[image.name]
            assert image.predicted != part.name
            assert image.picture is not None


def test_a_report_reads_the_manifest_once(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read, whole = [], Dataset.manifest
    monkeypatch.setattr(Dataset, "manifest", lambda dataset: read.append(dataset) or whole(dataset))
    gather(StoredModel.open(model), red, "now")
    assert len(read) == 1


def test_gallery_has_the_surest_mistakes_and_draws_of_the_others(model: str) -> None:
    stored = StoredModel.open(model)
    gallery, _ = images_to_show(stored, stored.dataset().manifest(), red)
    rows = stored.rows("test")
    scores, y = np.asarray(rows[0 : len(rows)] @ stored.W), rows.labels()
    right = scores.argmax(axis=1) == y
    ids = np.asarray(stored.dataset().sample_ids())[rows.indices]
    found = calibration_of(stored).probabilities
    assert found is not None
    sure = softmax(found.slope * scores, axis=1).max(axis=1)
    surest = ids[~right][np.argsort(-sure[~right])][:GALLERY]
    assert [image.name for image in gallery.confident] == surest.tolist()
    assert {image.name for image in gallery.right} <= set(ids[right])
    assert {image.name for image in gallery.wrong} <= set(ids[~right]) - set(surest)
    assert len(gallery.right) == min(GALLERY, right.sum())
    assert len(gallery.wrong) == min(GALLERY, (~right).sum() - len(surest))
    assert gallery.rows == len(rows)
    assert gallery.pictured
    assert images_to_show(stored, stored.dataset().manifest(), red)[0] == gallery


def test_of_a_very_long_split_a_part_is_looked_at(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topline.pipeline.evaluation.confusions.MOST_ROWS", 20)
    stored = StoredModel.open(model)
    gallery, _ = images_to_show(stored, stored.dataset().manifest(), red)
    assert 0 < gallery.rows < len(stored.rows("test")) // 2


def test_recorded_matrix_counts_the_answers(model: str) -> None:
    stored = StoredModel.open(model)
    assert stored.model.record.evaluation is not None
    found = Evaluation.from_dict(stored.model.record.evaluation)
    rows = stored.rows("test")
    answers = np.asarray(rows[0 : len(rows)] @ stored.W).argmax(axis=1)
    assert np.array_equal(confusion_matrix(rows.labels(), answers), found.confusion)
    recalls = recall_score(rows.labels(), answers, average="macro")
    assert found.metrics["macro-top-1"] == pytest.approx(recalls)


def test_pictures_that_are_gone_are_replaced_by_a_note(model: str) -> None:
    def gone(_: object) -> np.ndarray:
        raise FileNotFoundError(2, "there is no such file")

    stored = StoredModel.open(model)
    gallery, found = images_to_show(stored, stored.dataset().manifest(), gone)
    assert gallery.confident
    assert not gallery.pictured
    assert all(image.picture is None for part in found for image in part.images)
    assert "no such file" in found[0].images[0].note


def test_report_of_imported_features_needs_no_images(model: str, tmp_path: Path) -> None:
    place = write_report(model)
    assert Path(place) == Path(model).parents[1] / "reports" / "m0001.html"
    page = Path(place).read_text(encoding="utf-8")
    assert "There are no pictures to show" in page
    assert "so there are no images" in page
    elsewhere = tmp_path / "new" / "page.html"
    assert write_report(model, elsewhere) == str(elsewhere)
    Path(place).unlink()
    Path(place).parent.rmdir()
    Path(place).parent.touch()
    with pytest.raises(AccessError, match=r"cannot be used: .*: name a file elsewhere with --output"):
        write_report(model)
    assert elsewhere.stat().st_size > 10_000


def test_copies_are_named_beside_files_that_cannot_be_used(tmp_path: Path) -> None:
    photos, store = write_classes(tmp_path / "photos", 2, 8), str(tmp_path / "store")
    copied, copy = min((photos / "class0").iterdir()), photos / "class1" / "a-copy.png"
    shutil.copy(copied, copy)
    (photos / "class1" / "cut.png").touch()
    here = ClusterConfig(workers=0)
    extract(ExtractConfig(images=str(photos), store=store, backbone="hog:size=24,cells=8"), here)
    found = gather(StoredModel.open(train(TrainConfig(store=store, k=1), here).model), red, "now")
    listed = dict(found.rejected)
    assert (found.rejected_total, found.duplicates, len(listed)) == (1, 1, 2)
    assert any("same content as class0/" in reason and "label class0" in reason for reason in listed.values())
    assert "Files left out" in render_report(found)


def test_copies_that_are_kept_are_not_listed_as_left_out(tmp_path: Path) -> None:
    photos, store = write_classes(tmp_path / "photos", 2, 8), str(tmp_path / "store")
    shutil.copy(min((photos / "class0").iterdir()), photos / "class0" / "a-copy.png")
    here = ClusterConfig(workers=0)
    images = ExtractConfig(images=str(photos), store=store, backbone="hog:size=24,cells=8", duplicates="keep")
    assert extract(images, here).statuses["duplicate"] == 1
    found = gather(StoredModel.open(train(TrainConfig(store=store, k=1), here).model), red, "now")
    assert (found.duplicates, found.rejected, sum(found.counts.values())) == (0, [], 17)
