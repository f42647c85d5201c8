from __future__ import annotations

import numpy as np
import pytest

from topline import MaxHinge, SerialExecutor, ThreadExecutor, solve
from topline.solvers.core.state import IterationRecord, Objective, ThinnedHistory, Traffic, WorkerActivity
from topline.solvers.executors import resident_bytes

RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 12)).astype(np.float32)
Y = RNG.integers(0, 4, 300)


def record_of(number: int) -> IterationRecord:
    return IterationRecord(number, number + 1, 0.0, Objective(1.0, 0.0), 1.0, 1.0)


def test_differences_of_counters_and_levels_of_now() -> None:
    before = Traffic(10, 20, 30, 900, (WorkerActivity("a", 5, 1.5, 100), WorkerActivity("b", 5, 9.0, 100)))
    # b was restarted and its counter with it; c is new.
    now = Traffic(
        15, 20, 31, 800,
        (WorkerActivity("a", 4, 2.0, 110), WorkerActivity("b", 3, 0.25, 90), WorkerActivity("c", 3, 0.5, 80)),
    )  # fmt: skip
    assert now.since(before) == Traffic(
        5, 0, 1, 800,
        (WorkerActivity("a", 4, 0.5, 110), WorkerActivity("b", 3, 0.25, 90), WorkerActivity("c", 3, 0.5, 80)),
    )  # fmt: skip


@pytest.mark.parametrize("make", [SerialExecutor, lambda: ThreadExecutor(2, blocks=6)])
def test_every_round_says_who_worked_and_for_how_long(make) -> None:
    with make() as executor:
        result = solve(X, Y, MaxHinge(), 0.01, method="fw", max_passes=12, tol=1e-9, executor=executor)
    assert len(result.history) == 12
    for record in result.history:
        assert sum(worker.rows for worker in record.activity) == len(X)
        busy = sum(worker.seconds_busy for worker in record.activity)
        assert busy >= record.seconds_products + record.seconds_kernels > 0.0
        assert record.workers == executor.workers
        assert 10 << 20 < record.memory_bytes < 100 << 30
        assert record.bytes_sent == record.bytes_received == record.bytes_read == 0
    # What was counted in one round is not counted in the next again.
    assert sum(w.seconds_busy for r in result.history for w in r.activity) <= 2 * result.seconds


def test_bytes_that_are_read_from_a_file(tmp_path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, X.astype(np.float16))
    mapped = np.load(path, mmap_mode="r")
    result = solve(mapped, Y, MaxHinge(), 0.01, method="fw", max_passes=4, tol=1e-9)
    assert [record.bytes_read for record in result.history] == [2 * X.size] * 4


def test_resident_memory_follows_what_is_held() -> None:
    before = resident_bytes()
    held = np.ones(8 << 20)
    during = resident_bytes()
    assert 60 << 20 < during - before < 80 << 20
    del held
    assert resident_bytes() < during - (50 << 20)


@pytest.mark.parametrize("rounds", [1, 8, 9, 100, 1001])
def test_an_endless_run_keeps_an_even_choice_of_its_rounds(rounds: int) -> None:
    kept: ThinnedHistory[IterationRecord] = ThinnedHistory(8)
    for number in range(rounds):
        kept.add(record_of(number))
    numbers = [record.round for record in kept.records()]
    assert numbers[0] == 0
    assert numbers[-1] == rounds - 1
    assert len(numbers) <= 9
    if rounds <= 8:
        assert numbers == list(range(rounds))
    else:
        steps = np.diff(numbers[:-1])
        assert (steps == steps[0]).all()
        assert len(numbers) > 4


def test_no_rounds_are_kept_of_none() -> None:
    assert ThinnedHistory[int]().records() == ()
