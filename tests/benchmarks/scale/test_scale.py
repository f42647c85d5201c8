"""Benchmarks of large data run at a small size; what they measure is read by people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.scale import (
    dense_commands,
    flow_memory,
    gap_curve,
    imagenet_size,
    imagenet_store,
    many_classes,
    memory_limits,
    network,
    row_metric,
    sparse_commands,
    worker_speed,
)
from tests.benchmarks.scale.network import Messages, Network, round_cost
from topline.pipeline.cluster.calls import Call, by_tree
from topline.storage.datasets import list_datasets


@pytest.mark.benchmarks
def test_the_command_beside_the_library_on_smooth_losses_on_sparse_rows_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (found,) = sparse_commands.main(["--quick", "--repeats", "1", "--workers", "0"])
    assert found.method == "dual_ascent"
    assert found.passes["solve"] == found.passes["auto"]
    assert found.cpu["auto"] > 0.0
    assert "softmax, C = 1" in capsys.readouterr().out


@pytest.mark.benchmarks
def test_the_command_beside_the_library_on_dense_rows_runs(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--rows", "300", "--d", "40", "--m", "5"]
    (found,) = dense_commands.main([*sizes, "--repeats", "1", "--workers", "0"])
    assert found.passes == found.solve_passes
    assert found.command > found.train + found.certify
    assert "| 0 |" in capsys.readouterr().out


@pytest.mark.cluster
def test_trainings_on_one_worker_and_on_two_are_timed(tmp_path: Path, capsys) -> None:
    sizes = ["--rows", "9000", "--d", "16", "--m", "6", "--losses", "topk_hinge", "--tol", "0.1"]
    ((one, two),) = worker_speed.main([*sizes, "--cut", "--folder", str(tmp_path)])
    assert (one.workers, two.workers) == (1, 2)
    assert one.certified
    assert two.certified
    assert len(capsys.readouterr().out.splitlines()) >= 4


@pytest.mark.benchmarks
def test_the_command_and_its_worker_are_seen(tmp_path: Path) -> None:
    (found,) = flow_memory.main(
        ["--folder", str(tmp_path), "--sizes", "64MiB", "--workers", "1", "--flow-workers"]
    )
    assert found.status in (0, 3)
    # Fewer rows are trained without workers.  Python with NumPy, Numba and Dask takes some tens of MiB.
    (worker,) = found.each_worker
    assert min(found.coordinator, worker - found.data) > 50 * flow_memory.MIB


def test_every_number_of_blocks_gets_a_curve_that_ends_certified(capsys) -> None:
    found = gap_curve.main(["--rows", "300", "--d", "64", "--m", "8", "--blocks", "1", "2", "--tol", "0.05"])
    assert all(result.relative_gap <= 0.05 for result in found)
    rounds = sum(len(result.history) for result in found)
    assert len(capsys.readouterr().out.splitlines()) == rounds + 2 * 4
    X, _ = gap_curve.features(300, 64, 8)
    assert np.allclose(np.linalg.norm(X, axis=1), 1.0, atol=1e-5)


def test_imagenet_size_runs(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "store"
    sizes = ["--rows", "600", "--d", "32", "--m", "6", "--makers", "1", "--workers", "1"]
    options = ["--folder", str(folder), "--bare-seconds", "0.01", "--read-bytes", "0"]
    (found,) = imagenet_size.main([*options, *sizes, "--passes", "2", "--memory-limit", ""])
    assert found["certificate"]["valid"]
    assert (found["n"], found["m"], found["passes"]) == (600, 6, 2)
    assert found["pass_seconds"] > 0
    assert found["pss"] > 50e6  # Python and NumPy alone
    assert "passes an hour" in capsys.readouterr().out
    dataset = imagenet_store.imagenet_store(folder, 600, 32, 6)
    assert len(list_datasets(dataset.store)) == 1  # the same one, found again
    assert np.bincount(dataset.labels()).tolist() == [100] * 6
    X = dataset.rows(0, 600)
    assert X.dtype == np.float16
    assert 0.4 < np.mean(X == 0) < 0.8


def test_every_number_of_classes_gets_a_certified_line(tmp_path: Path, capsys) -> None:
    sizes = ["--rows", "240", "--d", "16", "--m", "4", "8", "--memory-limit", ""]
    found = many_classes.main(["--folder", str(tmp_path / "store"), *sizes])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-2:]] == ["4", "8"]
    for training in found:
        assert training.result["certificate"]["valid"]
        assert training.result["relative_gap"] <= 1e-2
        assert training.pss > 50e6  # Python and NumPy alone


@pytest.mark.benchmarks
def test_memory_limits_it_measures_what_ran_and_what_was_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--folder", str(tmp_path), "--times", "0.01", "--ways", "fw"]
    (ran,) = memory_limits.main([*options, "--limits", "900MiB"])
    assert ran.kept
    assert not ran.refused
    assert ran.status in (0, 3)
    assert min(ran.pss, ran.rss) > 100 << 20
    (refused,) = memory_limits.main([*options, "--limits", "200MiB"])
    assert refused.refused
    assert "give --memory-limit" in capsys.readouterr().out


GIGABIT = Network(bytes_per_second=125e6, delay=0.005)


def test_the_model_counts_what_passes_the_links_by_hand() -> None:
    # A million numbers of 4 bytes: 32 ms a copy; two down and two up, and two requests of two ways.
    cost = round_cost(1e6, 2, Messages(4.0, 4.0), GIGABIT, work=0.1)
    assert cost.down == pytest.approx(0.064)
    assert cost.up == pytest.approx(0.064)
    assert cost.delays == pytest.approx(0.020)
    assert cost.seconds == pytest.approx(0.248)
    assert cost.nbytes == 16e6


def copies(calls: Sequence[Call]) -> int:
    """Return how many copies follow each other down the fullest way of a tree of calls."""
    return len(calls) + max((copies(call.below) for call in calls), default=0)


@pytest.mark.parametrize("workers", [1, 3, 8, 16, 20, 64, 256])
def test_weights_and_sums_take_the_copies_of_the_tree_of_calls(workers: int) -> None:
    tree = by_tree([str(worker) for worker in range(workers)], print, (), max)
    cost = round_cost(1e6, workers, Messages(4.0, 4.0), GIGABIT, 0.0)
    assert cost.down == pytest.approx(0.032 * copies(tree))
    assert cost.up == pytest.approx(0.032 * copies(tree))
    assert cost.nbytes == 8e6 * len(tree)


def test_the_slowest_of_many_workers_is_waited_for() -> None:
    uneven = round_cost(1.0, 64, Messages(4.0, 4.0), Network(1e12, 0.0, spread=0.1), work=1.0)
    assert uneven.work == pytest.approx(1.0 + 0.1 * math.sqrt(2.0 * math.log(64)))
    # The last of them are called over one, two and three levels.
    delays = [round_cost(1.0, k, Messages(4.0, 4.0), GIGABIT, 0.0).delays for k in (4, 16, 64)]
    assert delays == pytest.approx([0.02, 0.04, 0.06])


@pytest.mark.cluster
def test_rounds_on_slow_links_take_what_the_bytes_take(capsys) -> None:
    # A copy of 320 KB takes 51 ms at 50 Mbit/s: the links are what a round waits for.
    sizes = ["--d", "400", "--m", "200", "--rows", "200", "--rounds", "2", "--mbit", "50", "--delay", "0.002"]
    ((workers, measured, model),) = network.main(["--workers", "2", *sizes])
    assert workers == 2
    assert "model" in capsys.readouterr().out
    # No round is shorter than its bytes take on the coordinator's link, and few bytes more pass than weights.
    assert measured.seconds > model.down + model.up
    assert 1.0 < (measured.sent + measured.received) / model.nbytes < 1.5


def test_the_metrics_save_passes(capsys) -> None:
    found = row_metric.main(["--rows", "3000", "--d", "24", "--m", "40", "--public", "", "--C", "1"])
    assert len(found) == 12
    sums = {kind: sum(passes[kind] for passes in found) for kind in found[0]}
    assert sums["as it comes"] < sums["of all rows"] < sums["no metric"]
    assert capsys.readouterr().out.count("as it comes") == 12


def test_few_features_leave_rows_at_zero_and_numbers_finite() -> None:
    for unit in (True, False):
        X, _ = row_metric.relu_rows(400, 8, 4, unit=unit, tail=False)
        assert np.isfinite(X).all()
