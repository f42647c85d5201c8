from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from topline.pipeline.telemetry.run_view import (
    LEVELS,
    MOST_STRETCHES,
    MOST_WORKERS,
    SUMS,
    RunTable,
    WorkerTimelines,
)

MOST = 500


def rounds_of(count: int, first: int = 0, seed: int = 0) -> list[dict[str, Any]]:
    """Smooth lines with rare peaks, each in one round."""
    rng = np.random.default_rng(seed)
    t = first + np.arange(count)
    fields: dict[str, Any] = {
        name: 1.0 + rng.random(count) + 50.0 * (rng.random(count) < 1e-3) for name in LEVELS
    }
    fields |= {name: rng.integers(0, 100, count) for name in SUMS}
    fields["stationarity"] = [None] * count
    return [
        {"round": int(t[i]), "passes": int(t[i]) + 1, "seconds": 0.01 * (t[i] + 1), "at": 1e9 + t[i]}
        | {name: values[i] for name, values in fields.items()}
        for i in range(count)
    ]


def test_few_rounds_stay_as_they_are() -> None:
    records = rounds_of(2 * MOST)
    table = RunTable(MOST)
    for start in range(0, len(records), 7):
        table.add(records[start : start + 7])
    columns = table.columns()
    for name in ("round", "passes", "seconds", "at", "primal", "step", *SUMS):
        np.testing.assert_array_equal(columns[name], [record[name] for record in records])
    gaps = np.minimum.accumulate([record["relative_gap"] for record in records])
    np.testing.assert_array_equal(columns["best_gap"], gaps)


@pytest.mark.parametrize("batch", [50, 5000])
def test_many_rounds_keep_their_peaks_and_their_sums(batch: int) -> None:
    records = rounds_of(20_000)
    table = RunTable(MOST)
    for start in range(0, len(records), batch):
        table.add(records[start : start + batch])
    columns = table.columns()
    rounds = columns["round"].astype(int)
    assert len(rounds) <= 2 * MOST
    assert (np.diff(rounds) > 0).all()
    assert (rounds[0], rounds[-1]) == (0, len(records) - 1)
    for name in SUMS:
        whole = np.cumsum([record[name] for record in records])
        np.testing.assert_allclose(np.cumsum(columns[name]), whole[rounds])
    for name in ("primal", "relative_gap", "step", "memory_bytes"):
        values = np.asarray([record[name] for record in records])
        np.testing.assert_array_equal(columns[name], values[rounds])
        for start in range(0, len(records), 2048):
            stretch = range(start, min(start + 2048, len(records)))
            kept = values[rounds[(rounds >= stretch[0]) & (rounds <= stretch[-1])]]
            assert kept.max() == values[stretch].max()
            assert kept.min() == values[stretch].min()
    assert np.isnan(columns["stationarity"]).all()


def test_rounds_that_come_again_replace_those_before() -> None:
    table = RunTable(MOST)
    table.add([*rounds_of(100), *rounds_of(30, first=80, seed=1)])
    table.add(rounds_of(5, first=105, seed=2))
    columns = table.columns()
    np.testing.assert_array_equal(columns["round"], np.arange(110))
    expected = [*rounds_of(100)[:80], *rounds_of(30, first=80, seed=1)[:25], *rounds_of(5, first=105, seed=2)]
    np.testing.assert_array_equal(columns["primal"], [record["primal"] for record in expected])
    assert table.repeated == 20 + 5


def test_work_of_all_workers_is_that_of_an_average_one() -> None:
    table = RunTable()
    record = rounds_of(1)[0] | {"seconds_products": 8.0, "seconds_kernels": 4.0, "seconds_waiting": 1.0}
    table.add([record | {"workers": 4}])
    columns = table.columns()
    assert [columns[f"seconds_{part}"][0] for part in ("products", "kernels", "waiting")] == [2.0, 1.0, 1.0]


def test_records_of_an_older_version() -> None:
    table = RunTable()
    table.add([{"round": 0, "passes": 1, "seconds": 0.5, "primal": 1.0, "dual": 0.0, "relative_gap": 1.0}])
    columns = table.columns()
    assert columns["bytes_sent"][0] == 0.0
    assert np.isnan(columns["memory_bytes"][0])
    assert np.isnan(columns["at"][0])


def test_lanes_of_workers_that_come_and_go() -> None:
    timelines = WorkerTimelines()
    a, b = ({"name": name, "rows": 5, "seconds_busy": 0.5, "memory_bytes": 7} for name in "ab")
    for second in range(3 * MOST_STRETCHES):
        timelines.add(float(second), [a, b] if second < 10 else [a])
    first, second_lane = timelines.timelines()
    assert (first.name, first.rows, first.memory_bytes, first.here) == ("a", 5, 7, True)
    assert not second_lane.here
    assert second_lane.seconds_busy == 5.0
    assert len(first.at) == len(first.busy) <= 2 * MOST_STRETCHES
    assert first.at[-1] == 3 * MOST_STRETCHES - 1
    # Half busy all the time, in whatever stretches.
    np.testing.assert_allclose(np.cumsum(first.busy), 0.5 * (first.at + 1))


def test_lanes_are_bounded() -> None:
    timelines = WorkerTimelines()
    for second in range(2 * MOST_WORKERS):
        worker = {"name": str(second), "rows": 1, "seconds_busy": 1.0, "memory_bytes": 0}
        timelines.add(float(second), [worker])
    names = [timeline.name for timeline in timelines.timelines()]
    assert names == [str(second) for second in range(MOST_WORKERS, 2 * MOST_WORKERS)]
