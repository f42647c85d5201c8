"""An operator's day: every place says the same of every state, and what is well alone exits with 0."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.operator_day import MET, ROOT, day

LOOK, MOVED = "ToplineScheduleNeedsALook", "ToplineFeaturesMoved"
#: What `/metrics` says in each state, who is told, and which of the simple alerts fire.
EXPECTED: dict[str, tuple[str, list[str], list[str]]] = {
    "served, never ran": ("served", [], []),
    "a run succeeded": ("served", [], []),
    "a run failed": ("failing", ["failed"], [LOOK]),
    "it failed again": ("failing", [], [LOOK]),
    "and a third time": ("failing", [], [LOOK, "ToplineFailures"]),
    "a run succeeded again": ("served", ["well again"], []),
    "Prefect's server is gone": ("server lost", ["failed"], [LOOK]),
    "it answers again": ("served", ["well again"], []),
    "the deployment is paused": ("paused", ["paused"], [LOOK]),
    "it is resumed": ("served", ["well again"], []),
    "246 of 296 images are gone": ("served", ["promoted", "kept", "drift"], [MOVED]),
    "the process is killed": ("dead", [], ["ToplineScheduleDead", MOVED]),
    "ended on purpose": ("ended", [], [MOVED]),
    "ended by an error": ("ended by error", [], [LOOK, MOVED]),
    "a deployment's run succeeded": ("served", [], [MOVED]),
    "three of them failed": ("failing", [], [LOOK, "ToplineFailures", MOVED]),
    "none of them came for three days": ("overdue", [], [LOOK, "ToplineFailures", MOVED]),
    "its record is damaged": ("none", [], ["ToplineModelDamaged", MOVED]),
}


def test_every_place_says_the_same_of_every_state(tmp_path: Path) -> None:
    rows = {row.state: row for row in day(tmp_path)}
    said = {state: (row.metric, row.notices, row.alerts) for state, row in rows.items()}
    assert said == EXPECTED
    for row in rows.values():
        is_well = row.metric in ("served", "ended")
        assert (row.exit, row.health) == ((0, "ok") if is_well else (1, "degraded")), row.state
        assert row.on_the_page or row.metric == "none", row.state
    shown = {state: row.status for state, row in rows.items()}
    assert "2 runs, last success TIME: nightly: no image can be read" in shown["it failed again"]
    assert "RuntimeError: no server can be started" in shown["ended by an error"]
    assert "nothing is retrained until it is resumed" in shown["the deployment is paused"]
    assert "no heartbeat for 10 min" in shown["the process is killed"]
    assert "retrain/nightly" in shown["none of them came for three days"]


@pytest.mark.parametrize("one", MET, ids=lambda one: one["met"])
def test_what_was_met_names_tests_that_exist(one) -> None:
    for test in one["tests"]:
        path, _, name = test.partition("::")
        text = (ROOT / "tests" / path).read_text(encoding="utf-8")
        assert re.search(rf"(def|class) {name.partition('[')[0] or 'test_'}", text)
