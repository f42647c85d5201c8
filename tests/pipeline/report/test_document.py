from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.pipeline.dashboards import view_of
from topline.pipeline.evaluation import Evaluation
from topline.pipeline.evaluation.confusions import Gallery, ShownImage, WorstClass
from topline.pipeline.evaluation.records import Confusion
from topline.pipeline.images import thumbnail
from topline.pipeline.pages import amount, duration, flat
from topline.pipeline.pages.charts import MOST_POINTS, Series, bar_chart, line_chart, thin
from topline.pipeline.report.document import ReportData, answer_words, render_report, verdict
from topline.pipeline.report.tables import pair_table
from topline.storage.models import ModelRecord

NASTY = '<script>alert("x")</script> & "mug"'


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
