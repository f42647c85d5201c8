"""The model of a round on a network, and the proxy that measurements beside it go through."""

from __future__ import annotations

import math

import pytest

from tests.benchmarks.scale.network import Messages, Network, main, round_cost

GIGABIT = Network(bytes_per_second=125e6, delay=0.005)


def test_the_model_counts_what_passes_the_links_by_hand() -> None:
    # A million numbers of 4 bytes: 32 ms a copy; two down and two up, and two requests of six ways.
    cost = round_cost(1e6, 2, Messages(4.0, 4.0), GIGABIT, work=0.1)
    assert cost.down == pytest.approx(0.064)
    assert cost.up == pytest.approx(0.064)
    assert cost.delays == pytest.approx(0.060)
    assert cost.seconds == pytest.approx(0.288)
    assert cost.nbytes == 16e6


def test_many_workers_add_up_their_sums_level_by_level() -> None:
    few, many = (round_cost(1e6, workers, Messages(4.0, 4.0), GIGABIT, 0.0) for workers in (16, 64))
    assert many.up == pytest.approx(few.up * 18 / 16)  # two levels of pairs, each one sum over a link
    uneven = round_cost(1.0, 64, Messages(4.0, 4.0), Network(1e12, 0.0, spread=0.1), work=1.0)
    assert uneven.work == pytest.approx(1.0 + 0.1 * math.sqrt(2.0 * math.log(64)))


def test_many_workers_hand_on_the_weights_level_by_level() -> None:
    # 16: four copies, and three by each of four. 64: four, four, and 44 by 16, of whom some send three.
    costs = {
        workers: round_cost(1e6, workers, Messages(4.0, 4.0), GIGABIT, 0.0) for workers in (8, 16, 20, 64)
    }
    assert [round(cost.down / 0.032) for cost in costs.values()] == [8, 7, 8, 11]
    assert costs[64].delays == pytest.approx(0.005 * (12 + 4 * 2 + 2 * 2))
    assert costs[64].nbytes == 4e6 * (4 + 16)


@pytest.mark.cluster
def test_rounds_on_slow_links_take_what_the_bytes_take(capsys) -> None:
    # A copy of 320 KB takes 51 ms at 50 Mbit/s: the links are what a round waits for.
    sizes = ["--d", "400", "--m", "200", "--rows", "200", "--rounds", "2", "--mbit", "50", "--delay", "0.002"]
    ((workers, measured, model),) = main(["--workers", "2", *sizes])
    assert workers == 2
    assert "model" in capsys.readouterr().out
    # No round is shorter than its bytes take on the coordinator's link, and few bytes more pass than weights.
    assert measured.seconds > model.down + model.up
    assert 1.0 < (measured.sent + measured.received) / model.nbytes < 1.5
