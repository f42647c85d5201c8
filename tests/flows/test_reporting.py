"""Shares, tables and summaries, as they are published."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.watching import Recorder
from topline.flows import reporting
from topline.flows.reporting import (
    DASHBOARD_URL,
    Entry,
    FlowProgress,
    artifact_data,
    artifact_key,
    dashboard_entry,
    report_link,
)
from topline.pipeline.telemetry import TimeLeft


@pytest.fixture(autouse=True)
def _pin_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "PUBLISH_SECONDS", 0.0)


class Latest(dict[str, Entry]):
    """What was published last under each key, and how often something was."""

    count = 0

    def publish(self, key: str, entry: Entry) -> None:
        self.count += 1
        self[key] = entry


def published(values: Latest, key: str) -> Any:
    return values[key].data


def record(number: int, gap: float) -> dict[str, Any]:
    return {
        "round": number,
        "relative_gap": gap,
        "gap": gap,
        "primal": 1.0,
        "dual": 1.0 - gap,
        "passes": number,
    }


def test_a_stage_moves_by_its_units() -> None:
    values = Latest()
    progress = FlowProgress(values.publish)
    progress.begin("extract", 200, "images")
    assert published(values, "extract-progress") == 0.0
    progress.advance(50)
    progress.advance(50)
    assert published(values, "extract-progress") == 50.0


def test_training_moves_by_factors_of_the_gap_and_never_back() -> None:
    values = Latest()
    progress = FlowProgress(values.publish, tol=1e-3)
    progress.begin("train", 1000, "passes")
    shares = []
    for number, gap in enumerate([1.0, 0.1, 0.2, 0.01, math.nan, 5e-4]):
        progress.advance(1)
        progress.note(record(number, gap))
        shares.append(published(values, "train-progress"))
    assert shares == pytest.approx([0.0, 100 / 3, 100 / 3, 200 / 3, 200 / 3, 100.0])


def test_the_time_left_is_shown_until_training_ends() -> None:
    values = Latest()
    progress = FlowProgress(values.publish, tol=1e-3)
    progress.begin("train", 1000, "passes")
    progress.note({**record(0, 0.5), "left": TimeLeft(600.0, 590.0, 610.0)})
    assert values["train-progress"].description.endswith(", about 10 min left")
    progress.begin("certify", 10, "rows")
    assert values["train-progress"].description.endswith(" scale")


def test_without_a_gap_training_moves_by_the_gradient() -> None:
    values = Latest()
    progress = FlowProgress(values.publish, tol=1e-4)
    progress.begin("train", 100, "passes")
    for number, size in enumerate((1.0, 1e-2, 1e-4)):
        progress.note({**record(number, math.nan), "stationarity": size})
        assert published(values, "train-progress") == pytest.approx(50.0 * number)


def test_a_first_gap_below_the_tolerance_is_the_whole_way() -> None:
    values = Latest()
    progress = FlowProgress(values.publish, tol=0.5)
    progress.begin("train", 10, "passes")
    progress.note(record(0, 0.5))
    assert published(values, "train-progress") == 100.0


def test_the_table_holds_the_last_rounds() -> None:
    values = Latest()
    progress = FlowProgress(values.publish, tol=1e-3)
    progress.begin("train", 1000, "passes")
    for number in range(50):
        progress.note(record(number, 1.0 / (1 + number)))
    progress.begin("certify", 10, "rows")
    rows = published(values, "gaps")
    assert [row["round"] for row in rows] == list(range(50 - reporting.GAPS_SHOWN, 50))
    assert set(rows[0]) == set(reporting.GAP_COLUMNS)


def test_nothing_is_published_more_often_than_a_reader_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "PUBLISH_SECONDS", 3600.0)
    values = Latest()
    progress = FlowProgress(values.publish, tol=1e-3)
    progress.begin("train", 1000, "passes")
    versions = values.count
    for number in range(1000):
        progress.advance(1)
        progress.note(record(number, 0.5))
    assert values.count == versions
    progress.end()
    assert published(values, "gaps")[-1]["round"] == 999


def test_everything_is_passed_on_to_the_caller_s_display() -> None:
    noted = Recorder()
    progress = FlowProgress(Latest().publish, also=noted)
    progress.begin("extract", 3, "images")
    progress.advance(2)
    progress.note({"file": "a.png"})
    assert noted.stages == [("extract", 3, "images")]
    assert (noted.counts, noted.facts) == ({"extract": 2}, [{"file": "a.png"}])


def test_artifacts_hold_what_json_can_say() -> None:
    table = Entry("table", "", [{"gap": math.inf, "dual": math.nan, "primal": 0.12345678, "round": 3}])
    assert artifact_data(table) == '[{"gap": "inf", "dual": "nan", "primal": 0.123457, "round": 3}]'
    assert artifact_data(Entry("progress", "", 130.0)) == 100.0
    assert artifact_data(Entry("markdown", "", "# x")) == "# x"


def test_keys_and_links_are_such_as_prefect_and_browsers_take(tmp_path: Path) -> None:
    assert artifact_key("Write digits: 2nd try progress") == "write-digits-2nd-try-progress"
    assert report_link(str(tmp_path / "a b.html")) == (tmp_path / "a b.html").as_uri()
    assert report_link("s3://bucket/report.html") == "s3://bucket/report.html"


def test_the_dashboard_is_linked_where_somebody_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DASHBOARD_URL, raising=False)
    assert "topline dashboard --store photos" in dashboard_entry("photos").data
    monkeypatch.setenv(DASHBOARD_URL, "https://me:secret@topline.example/")
    assert "(https://***@topline.example/)" in dashboard_entry("photos").data
    monkeypatch.setenv(DASHBOARD_URL, "javascript:alert(1)")
    assert "javascript" not in dashboard_entry("photos").data
