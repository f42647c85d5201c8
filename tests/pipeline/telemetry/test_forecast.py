from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from topline.pipeline.telemetry.run_view import KEPT, Forecast, TimeLeft

PACE = 0.02
TOL = 1e-4


def estimated_seconds_left(history: list[dict[str, Any]], tol: float) -> TimeLeft | None:
    forecast = Forecast(tol)
    for record in history:
        forecast.take(record)
    return forecast.left()


def rounds_of(gaps: Any, first: int = 0) -> list[dict[str, Any]]:
    return [
        {"round": first + t, "seconds": PACE * (first + t + 1), "relative_gap": float(gap)}
        for t, gap in enumerate(gaps)
    ]


def test_a_constant_factor_a_round() -> None:
    t = np.arange(101)
    left = estimated_seconds_left(rounds_of(0.5 * 0.97**t), TOL)
    assert left is not None
    truth = PACE * (math.log(TOL / 0.5) / math.log(0.97) - 100)
    assert (left.low, left.seconds, left.high) == pytest.approx((truth, truth, truth), rel=1e-6)


@pytest.mark.parametrize("power", [0.5, 0.8])
def test_a_power_of_the_rounds(power: float) -> None:
    t = np.arange(101)
    tol = 0.01
    left = estimated_seconds_left(rounds_of(0.5 / (t + 1) ** power), tol)
    assert left is not None
    truth = PACE * ((0.5 / tol) ** (1 / power) - 1 - 100)
    assert (left.low, left.seconds, left.high) == pytest.approx((truth, truth, truth), rel=1e-6)


def test_the_range_of_a_noisy_decline_holds_the_truth() -> None:
    held, said = 0, 0
    for seed in range(40):
        noise = np.random.default_rng(seed).standard_normal(2000)
        gaps = 0.5 * 0.99 ** np.arange(2000) * np.exp(0.1 * noise)
        end = int(np.argmax(gaps <= TOL))
        left = estimated_seconds_left(rounds_of(gaps[:400]), TOL)
        if left is not None:
            said += 1
            held += left.low <= PACE * (end - 400) <= left.high
    assert said >= 30
    assert held >= 0.9 * said


@pytest.mark.parametrize(
    "gaps",
    [
        np.ones(100),
        np.maximum(0.9 ** np.arange(100), 0.9**60),  # stands still
        0.9 ** np.minimum(np.arange(100), 80 + np.arange(100) / 1e3),  # hardly moves any more
        1.0 + 0.5 * np.random.default_rng(0).standard_normal(200) ** 2,
        0.999 ** np.arange(50),  # far from the tolerance
        0.5 ** np.arange(5),  # too few
        [],
        [math.nan] * 50,
    ],
    ids=["flat", "plateau", "crawl", "noise", "far", "few", "none", "nan"],
)
def test_it_says_nothing_where_nothing_can_be_said(gaps: Any) -> None:
    assert estimated_seconds_left(rounds_of(gaps), TOL) is None


def test_nothing_is_left_once_the_tolerance_was_reached() -> None:
    left = estimated_seconds_left(rounds_of([0.5, 1e-5, 0.2]), TOL)
    assert left is not None
    assert (left.seconds, left.low, left.high) == (0.0, 0.0, 0.0)


def test_the_gradient_where_there_is_no_gap() -> None:
    records = rounds_of(0.8 ** np.arange(20))
    for record in records:
        record |= {"relative_gap": None, "stationarity": record["relative_gap"]}
    left = estimated_seconds_left(records, 0.8**30)
    assert left is not None
    assert left.seconds == pytest.approx(11 * PACE)


def test_rounds_that_are_done_again_and_events() -> None:
    gaps = 0.9 ** np.arange(100)
    records = [
        *rounds_of(gaps[:50]), {"event": "rollback", "reason": "a worker was lost", "at": 1.0},
        *rounds_of(gaps[20:60], first=20),
    ]  # fmt: skip
    left = estimated_seconds_left(records, 0.9**99)
    assert left is not None
    assert left.seconds == pytest.approx(40 * PACE)


def test_a_forecast_of_an_endless_run_keeps_little() -> None:
    forecast = Forecast(1e-5)
    for record in rounds_of(1.0 / (np.arange(20_000) + 1)):
        forecast.take(record)
    assert len(forecast._points.records()) <= KEPT + 1
    left = forecast.left()
    assert left is not None
    assert left.seconds == pytest.approx(PACE * 80_000, rel=1e-3)
