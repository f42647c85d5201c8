from __future__ import annotations

import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import binomtest
from sklearn.metrics import confusion_matrix, recall_score

from tests.pipeline.dashboards import NASTY, view_of
from tests.pipeline.pictures import write_classes
from tests.pipeline.small_data import small_dataset
from topline.pipeline.calibration import calibration_of
from topline.pipeline.evaluation import Evaluation, SizePoint, ranks_against_ties
from topline.pipeline.evaluation.confusions import (
    GALLERY,
    IMAGES_PER_CLASS,
    WORST_CLASSES,
    Gallery,
    ShownImage,
    WorstClass,
    images_to_show,
)
from topline.pipeline.evaluation.measurement import evaluate
from topline.pipeline.evaluation.records import Confusion
from topline.pipeline.images import thumbnail
from topline.pipeline.ingest import extract
from topline.pipeline.options import ClusterConfig, ExtractConfig, TrainConfig
from topline.pipeline.pages import amount, duration, flat
from topline.pipeline.pages.charts import MOST_POINTS, Series, bar_chart, line_chart, thin
from topline.pipeline.report import write_report
from topline.pipeline.report.document import ReportData, answer_words, gather, render_report, verdict
from topline.pipeline.report.tables import pair_table
from topline.pipeline.report.training_sizes import _nested_order, measure_training_sizes, size_words
from topline.pipeline.rows.stored_model import StoredModel
from topline.pipeline.training import train
from topline.solvers.losses import TopKHinge
from topline.solvers.run import solve
from topline.storage.datasets import Dataset
from topline.storage.errors import AccessError
from topline.storage.models import ModelRecord


def hand_made_history(rounds: int) -> list[dict[str, Any]]:
    records = []
    for t in range(rounds):
        gap = 0.6 / (1 + t) ** 1.4
        records.append(
            {
                "round": t,
                "passes": t + 1,
                "seconds": 0.02 * (t + 1),
                "primal": 0.31 + gap,
                "dual": 0.31,
                "gap": gap,
                "relative_gap": gap / (0.31 + gap),
                "gap_kind": "true",
                "step": 2 / (t + 2),
                "active": 0.3 + 0.7 / (1 + t),
                "seconds_products": 0.012,
                "seconds_kernels": 0.005,
                "seconds_waiting": 0.001,
                "bytes_read": 40_000_000 if t == 0 else 0,
                "bytes_sent": 8_000_000,
                "bytes_received": 9_000_000,
                "memory_bytes": 2_000_000_000 + 10_000_000 * t,
                "at": 1.79e9 + 0.02 * t,
            }
        )
    lost = {"event": "worker-lost", "at": 1.79e9, "worker": NASTY}
    return [
        *records[:5],
        lost,
        *records[5:],
        {"event": "checkpoint", "at": 1.8e9, "seconds": 0.5, "bytes": 4e6},
    ]


def hand_made_report() -> ReportData:
    names = ("back_pack", NASTY, "日本語", "calculator")
    picture = thumbnail(np.full((8, 8, 3), 90, np.uint8))
    topk = {"1": 0.81, "2": 0.9, "3": 0.955, "5": 0.99, "10": 1.0}
    certificate = {
        "model": "m0001", "dataset": "d0001-ab12", "primal": 0.3108, "dual": 0.3106, "gap": 0.0002,
        "relative_gap": 6.4e-4, "gap_kind": "true", "lifted_gap": None, "rests_on": "W and b", "n": 1257,
        "recorded_primal": 0.3108, "recorded_dual": 0.3106, "agrees": True, "w_difference": None,
        "infeasibility": None, "valid": True, "tol": 1e-3, "certified": True, "seconds": 0.4,
        "created": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    evaluation = {
        "model": "m0001", "dataset": "d0001-ab12", "split": "test", "rows": 360, "topk": topk,
        "majority_class": names[0], "majority_baseline": 0.3, "seconds": 0.1, "created": "2026-01-01",
        "per_class": [{"name": name, "rows": 90, "topk": topk} for name in names],
        "confused": [{"true": names[1], "predicted": names[2], "count": 7}],
        "confusion": [[83, 7, 0, 0], [0, 60, 30, 0], [0, 0, 90, 0], [45, 0, 0, 45]],
        "sizes": [
            {"rows": 314, "topk": topk | {"1": 0.70}, "error": 0.02},
            {"rows": 628, "topk": topk | {"1": 0.75}, "error": 0.02},
            {"rows": 1257, "topk": topk, "error": 0.0},
        ],
    }  # fmt: skip
    record = ModelRecord(
        dataset="d0001-ab12", dataset_digest="ab" * 32, config={"loss": "topk_hinge", "k": 5, "tol": 1e-3},
        loss={"name": "topk_hinge", "k": 5}, lam=8e-4, C=1.0, smoothing=0.0, method="fw", n=1257, d=325, m=4,
        class_names=names,
        features={"kind": "extract", "backbone": {"name": "hog", "cells": 8}, "about": "325 features: HOG"},
        result={"passes": 120, "seconds": 3.2, "status": "solved"}, certificate=certificate,
        evaluation=evaluation, run="r0001", code_version="0.1.0", id="m0001", created="2026-01-01",
    )  # fmt: skip
    worst = [
        WorstClass(
            NASTY, 90, {1: 0.61, 3: 0.9},
            (
                ShownImage("mug/1.png", NASTY, "日本語", 2, "91.0%", picture),
                ShownImage(NASTY, NASTY, "calculator", 4, "60.0%", None, "gone: no such file"),
            ),
        )
    ]  # fmt: skip
    return ReportData(
        record=record, run=view_of(hand_made_history(120)), worst=worst,
        gallery=Gallery(
            confident=worst[0].images,
            right=(ShownImage("mug/2.png", NASTY, NASTY, 1, "99.0%", picture),), rows=360,
        ),
        training_counts=(300, 310, 320, 327),
        counts={"train": 1257, "val": 0, "test": 360, "rejected": 2},
        rejected=[("bad/<b>.jpg", "cut short"), ("x.png", "zero bytes")],
        rejected_total=2, duplicates=3, created="2026-01-01T00:00:00+00:00",
    )  # fmt: skip


def test_what_users_named_is_escaped() -> None:
    page = render_report(hand_made_report())
    assert NASTY not in page
    assert "<b>.jpg" not in page
    assert page.count("&lt;script&gt;alert") >= 3


def test_page_is_complete_in_itself() -> None:
    page = render_report(hand_made_report())
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!data:|#)""", page)
    assert "@import" not in page
    assert "url(" not in page
    assert page.count("<script") == 1
    assert "fetch(" not in page


def test_page_shows_certificate_accuracy_confusions_and_lineage() -> None:
    page = render_report(hand_made_report())
    for expected in ("6.40e-04", "Certified", "81.0%", "99.0%", "rank 2", "Most confused pairs",
                     "292 of 360 test images", "(+6.0%, standard error 2.0%)", "no picture",
                     "cut short", "325 features: HOG.", "d0001-ab12", "backbone.name",
                     "日本語"):  # fmt: skip
        assert expected in page
    assert page.count("<svg") == 11
    order = [page.index(f'<section id="{name}">') for name in ("answer", "gallery", "data", "training")]
    assert order == sorted(order)


def test_page_shows_what_the_run_cost() -> None:
    page = render_report(hand_made_report())
    for expected in (
        "1.4 s, 60.0%", "0.6 s, 25.0%", "0.1 s, 5.0%", "0.2 s, 10.0%", "40 MB", "960 MB", "1.08 GB",
        "3.19 GB",
        "1, 0.5 s each, 4 MB", "<td>after 5 rounds</td><td>worker left</td>", "2026-09-21 14:13:20",
    ):  # fmt: skip
        assert expected in page
    older = [
        {
            name: value
            for name, value in record.items()
            if not name.startswith(("seconds_", "bytes_", "memory"))
        }
        for record in hand_made_history(120)
        if "round" in record
    ]
    page = render_report(replace(hand_made_report(), run=view_of(older)))
    assert page.count("<svg") == 8


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e7, "25 MB"), (6e9, "6 GB"), (4e12, "4 TB")],
)
def test_amounts_read_well(size: float, text: str) -> None:
    assert amount(size) == text


def test_page_without_certificate_evaluation_or_history() -> None:
    full = hand_made_report()
    bare = ReportData(record=replace(full.record, certificate=None, evaluation=None, run=None, result={}))
    page = render_report(bare)
    assert "Not certified yet" in page
    assert "has not been evaluated" in page
    assert "No rounds were recorded" in page
    assert "<h2>Cost</h2>" not in page


def test_page_of_a_model_without_test_rows_does_not_ask_to_evaluate_it() -> None:
    full = hand_made_report()
    page = render_report(
        replace(full, record=replace(full.record, evaluation=None), counts={"train": 9, "test": 0})
    )
    assert "no test rows" in page
    assert "has not been evaluated" not in page


def test_page_of_a_loss_that_is_not_convex_says_why_there_is_no_certificate() -> None:
    full = hand_made_report()
    result = {
        "status": "solved", "passes": 40, "seconds": 1.0, "primal": 0.31, "dual": None, "gap": None,
        "relative_gap": None, "gap_kind": "none", "stationarity": 2.5e-4,
    }  # fmt: skip
    history = [
        {**record, "dual": None, "gap": None, "relative_gap": None, "stationarity": record["gap"]}
        for record in hand_made_history(120)
        if "round" in record
    ]
    record = replace(full.record, certificate=None, result=result)
    page = render_report(replace(full, record=record, run=view_of(history)))
    assert "No certificate: the loss is not convex" in page
    assert "2.50e-04 of its first size" in page
    assert "Gradient beside the first one" in page
    assert "topline certify" not in page
    assert "Relative duality gap" not in page


def test_a_certificate_that_fails_its_checks_is_not_shown_as_good() -> None:
    full = hand_made_report().record
    assert full.certificate is not None
    assert verdict(full.certificate)[0] == "good"
    assert verdict({**full.certificate, "certified": False})[0] == "fair"
    assert verdict({**full.certificate, "certified": False, "valid": False})[0] == "bad"


def test_long_histories_are_thinned_and_keep_ends_and_extremes() -> None:
    rng = np.random.default_rng(0)
    x, y = np.arange(100_000.0), rng.standard_normal(100_000)
    y[54_321] = 99.0
    kept = thin(x, y)
    assert len(kept) <= MOST_POINTS
    assert kept[0] == 0
    assert kept[-1] == 99_999
    assert 54_321 in kept
    full = hand_made_report()
    page = render_report(replace(full, run=view_of(hand_made_history(20_000))))
    assert len(page) < 1_000_000


@pytest.mark.parametrize("values", [[0.5], [1.0, 1.0], [1e-9, 1e9], [math.nan, 0.25], [5.0, -1.0, 0.0, 3.0]])
def test_charts_stay_inside_their_frame(values: list[float]) -> None:
    for log in (False, True):
        line = Series.of("gap", range(len(values)), values, positive=log)
        drawn = str(line_chart([line], x_label="rounds", y_label="gap", log=log))
        points = re.findall(r'cx="([-\d.]+)" cy="([-\d.]+)"', drawn)
        assert points
        assert all(0 <= float(x) <= 560 and 0 <= float(y) <= 280 for x, y in points)
        assert "nan" not in drawn


def test_bars_are_as_long_as_their_shares() -> None:
    drawn = str(bar_chart([("top-1", 0.25), ("top-5", 1.0)], mark=("largest class", 0.9)))
    short, full = (float(width) for width in re.findall(r'class="bar"[^>]*width="([\d.]+)"', drawn))
    assert short / full == pytest.approx(0.25, abs=1e-3)


def test_thumbnails_are_small_pictures() -> None:
    large = thumbnail(np.random.default_rng(0).integers(0, 256, (600, 900, 3)).astype(np.uint8))
    assert large.startswith("data:image/jpeg;base64,")
    assert len(large) < 20_000


def test_options_are_flattened_without_empty_ones() -> None:
    assert flat({"a": {"b": 1, "c": None}, "d": ("x", "y")}) == [("a.b", "1"), ("d", "x, y")]


def test_durations_read_well() -> None:
    assert [duration(s) for s in (3.21, 600, 10_000, None)] == ["3.2 s", "10 min", "2 h 47 min", "–"]


def test_imported_rows_are_not_called_images() -> None:
    full = hand_made_report()
    imported = replace(full, record=replace(full.record, features={"kind": "imported"}))
    page = render_report(imported)
    assert "292 of 360 test rows" in page
    assert "Would more rows help?" in page
    assert "test images" not in page


def test_a_line_of_one_point_is_seen() -> None:
    line = Series.of("accuracy", [1.0], [0.9])
    assert str(line_chart([line], x_label="C", y_label="accuracy")).count('class="dot"') == 1


def test_a_target_that_the_axis_does_not_reach_is_named_and_not_drawn_over_the_labels() -> None:
    line = Series.of("gap", [0.0, 1.0], [1e6, 1.0], positive=True)
    drawn = str(line_chart([line], x_label="rounds", y_label="gap", log=True, target=("tolerance", 1e-9)))
    assert 'class="target"' not in drawn
    assert "tolerance" in drawn


def test_noise_is_drawn_nearly_flat() -> None:
    line = Series.of("GB", [0.0, 1.0, 2.0], [2.0, 2.01, 2.0])
    drawn = str(line_chart([line], x_label="rounds", y_label="GB"))
    heights = [float(y) for y in re.findall(r'cy="([\d.]+)"', drawn)]
    assert max(heights) - min(heights) < 10


def test_an_axis_of_shares_ends_at_the_whole() -> None:
    line = Series.of("accuracy", [0.0, 1.0], [0.99, 1.0])
    drawn = str(line_chart([line], x_label="log10 C", y_label="accuracy", most=1.0))
    assert re.findall(r">(1\.[0-9]+)<", drawn) == []
    assert ">1<" in drawn


@pytest.mark.parametrize(("pictures", "seven"), [(1, False), (8, False), (9, True), (12, False), (17, True)])
def test_no_picture_stands_alone_in_the_last_row(pictures: int, seven: bool) -> None:
    report = hand_made_report()
    photographs = (report.gallery.right[0],) * pictures
    page = render_report(replace(report, gallery=replace(report.gallery, right=photographs)))
    shown = page[page.index("Correct, at random") :]
    assert shown.partition('<div class="photos')[2].startswith(' c7"' if seven else '">')


@pytest.mark.parametrize(
    ("share", "words"), [(0.994, "99% or more have their class"), (1.0, "all have their class")]
)
def test_the_answer_says_all_where_it_is_all(share: float, words: str) -> None:
    evaluation = Evaluation.from_dict(dict(hand_made_report().record.evaluation or {}))
    assert f", and {words} among the first 3" in answer_words(replace(evaluation, topk={1: 0.9, 3: share}))


@pytest.mark.parametrize("more", [0, 3])
def test_a_confusion_that_is_not_among_the_most_frequent_is_not_called_none(more: int) -> None:
    pairs = tuple(Confusion(*names, count) for *names, count in (("a", "b", 5), ("c", "a", 4), ("b", "a", 2)))
    right = 1.0 - (11 + more) / 100
    evaluation = Evaluation("m1", "d1", "test", 100, {1: right}, "a", 0.5, (), pairs, 0.1, "2026-01-01")
    rows = [("a", "b", 7, 5, 2), ("c", "a", 4, 4, None if more else 0)]
    assert list(pair_table(evaluation).rows) == rows


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


def trained(folder: Path, **options: object) -> str:
    small_dataset(folder, n=700, d=12, m=5)
    here = ClusterConfig(workers=0)
    return train(TrainConfig(store=str(folder), k=2, tol=1e-3, **options), here).model  # type: ignore[arg-type]


def test_points_are_those_of_models_trained_from_nothing_on_the_same_rows(tmp_path: Path) -> None:
    url = trained(tmp_path / "store")
    before = evaluate(url)
    assert measure_training_sizes(StoredModel.open(url)) == ""
    stored = StoredModel.open(url)
    assert stored.model.record.evaluation is not None
    found = Evaluation.from_dict(stored.model.record.evaluation)
    assert isinstance(before, Evaluation)
    rows, held = stored.rows("train"), stored.rows("test")
    n = len(rows)
    assert [point.rows for point in found.sizes] == [n // 8, n // 4, n // 2, n]
    assert found.sizes[-1].topk == before.topk
    X, y = np.array(rows[0:n]), rows.labels().astype(np.int64)
    X_held, y_held = np.array(held[0 : len(held)]), held.labels()
    right = (X_held @ stored.W).argmax(axis=1) == y_held
    order = _nested_order(rows.labels())
    for point in found.sizes[:-1]:
        here = np.sort(order[: point.rows])
        alone = solve(X[here], y[here], TopKHinge(2), 1.0 / point.rows, tol=1e-6, m=5)
        shares = (X_held @ alone.W).argmax(axis=1) == y_held
        # Both are within 1e-3 of the optimum, where a row or two of 140 may lie on the border.
        assert point.topk[1] == pytest.approx(shares.mean(), abs=2.5 / len(y_held))
        assert point.error == pytest.approx(np.sqrt(np.sum(shares != right)) / len(right), abs=0.012)
    # What is known is neither measured again nor lost by another evaluation.
    assert measure_training_sizes(StoredModel.open(url)) == ""
    again = evaluate(url)
    assert isinstance(again, Evaluation)
    assert again.sizes == found.sizes
    assert "Would more images help?" in Path(write_report(url)).read_text(encoding="utf-8")


def test_draws_are_nested_and_hold_every_class_alike() -> None:
    labels = np.repeat(np.arange(4), [400, 200, 100, 100])
    order = _nested_order(labels)
    assert sorted(order.tolist()) == list(range(800))
    for size in (100, 200, 400):
        assert np.abs(np.bincount(labels[order[:size]]) - np.array([4, 2, 1, 1]) * size / 8).max() <= 1


def test_what_has_no_curve_says_why(tmp_path: Path) -> None:
    url = trained(tmp_path / "store", kernel="rbf")
    assert "has not been evaluated" in measure_training_sizes(StoredModel.open(url))
    evaluate(url)
    assert "kernel" in measure_training_sizes(StoredModel.open(url))


def test_the_verdict_weighs_the_gain_against_chance() -> None:
    def points(gain: float, error: float) -> list[SizePoint]:
        return [SizePoint(500, {1: 0.80}, error), SizePoint(1000, {1: 0.80 + gain}, 0.0)]

    assert "likely to help, as many images again may bring up to 5.0% more" in size_words(points(0.05, 0.01))
    assert "not more than chance" in size_words(points(0.01, 0.01))
    assert "look at their labels" in size_words(points(-0.05, 0.01))
    assert size_words(()) == ""
    first, last = points(0.05, 0.01)
    assert size_words((first, replace(last, topk={1: 1.0}))).endswith(
        "nothing is left to gain on these held-out rows."
    )
