"""A memory limit is for all processes together: how it is shared out, what is refused, and that it holds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.tree_memory import TreeMemory
from topline.pipeline.cluster.memory_plan import (
    FILLED,
    MIB,
    ProblemSize,
    plan_alone,
    plan_memory,
    plan_on_workers,
    worker_share,
)
from topline.pipeline.errors import ConfigError
from topline.solvers.methods import MethodMemory
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import DatasetWriter, empty_manifest
from topline.storage.stores import open_store

GIB = 1 << 30
IMAGENET = ProblemSize(n=1_281_167, d=4097, m=1000, blocks=41, features=21 * 10**9, keeps_duals=True)
SMALL = ProblemSize(n=20_000, d=100, m=10, blocks=2, features=8_000_000, keeps_duals=True)


def test_imagenet_fits_less_than_six_gigabytes_with_its_duals_packed() -> None:
    plan = plan_memory(int(5.5 * GIB), IMAGENET, 2, 1 << 30)
    assert 2 * plan.worker_bytes < 5.5 * GIB - 500 * MIB  # the coordinator has its part
    assert 100 * MIB < plan.dual_bytes < 2 * GIB  # as arrays they take 20 GB
    assert 0 < plan.cache_bytes <= 1 << 30
    assert plan.dual_bytes + plan.cache_bytes < 2 * plan.worker_bytes
    assert plan_memory(int(5.5 * GIB), replace(IMAGENET, keeps_duals=False), 2, 1 << 30).dual_bytes is None


def test_where_there_is_room_everything_is_kept_as_asked() -> None:
    for limit in (None, 8 * GIB):
        plan = plan_memory(limit, SMALL, 2, 123_456_789)
        assert (plan.cache_bytes, plan.dual_bytes) == (123_456_789, None)
    assert plan_memory(4 * GIB, SMALL, 2, 0, processes=False).worker_bytes is None


def test_features_have_by_default_what_a_limit_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topline.pipeline.cluster.memory_plan.MEMORY_LIMIT", 16 * GIB)
    free = replace(IMAGENET, keeps_duals=False)
    room = plan_memory(6 * GIB, free, 2, 1 << 40)
    assert room.cache_bytes > 2 * GIB
    assert plan_memory(6 * GIB, free, 2, None) == room
    assert plan_alone(6 * GIB, free, 2, None) == plan_alone(6 * GIB, free, 2, 1 << 40)
    assert plan_on_workers([4 * GIB] * 2, free, None) == plan_on_workers([4 * GIB] * 2, free, 1 << 40)
    # Others need their part of a machine, and of workers without limits nothing is known.
    assert plan_memory(None, free, 2, None).cache_bytes == 4 * GIB
    assert plan_alone(None, free, 2, None)[0].cache_bytes == 4 * GIB
    assert plan_on_workers([4 * GIB, 0], free, None).cache_bytes == GIB


def test_duals_of_one_block_are_arrays_where_extrapolation_fits_beside_them() -> None:
    """Its 256 MiB at most come off the features; several blocks do without it."""
    limit = 2 * GIB
    several = plan_memory(limit, ProblemSize(50_000, 512, 100, 2, 4 * GIB, keeps_duals=True), 1, 8 * GIB)
    one = plan_memory(limit, ProblemSize(50_000, 512, 100, 1, 4 * GIB, keeps_duals=True), 1, 8 * GIB)
    assert several.dual_bytes is None
    assert one.dual_bytes is None
    assert several.cache_bytes - one.cache_bytes == pytest.approx(256 * MIB, abs=8 * MIB)


def test_what_cannot_fit_is_refused_with_the_least_limit_that_does() -> None:
    for size, workers in ((IMAGENET, 2), (SMALL, 1), (SMALL, 8)):
        with pytest.raises(ConfigError, match="too small for this job") as refused:
            plan_memory(300 * MIB, size, workers, 0)
        found = re.search(r"--memory-limit (\d+)MiB", str(refused.value))
        least = int(found[1])
        assert ("--workers" in str(refused.value)) == (workers > 1)
        plan_memory(least * MIB, size, workers, 0)
        with pytest.raises(ConfigError):
            plan_memory((least - 101) * MIB, size, workers, 0)
    with pytest.raises(ConfigError, match="too small"):
        worker_share(600 * MIB, 2)


def test_a_process_alone_takes_fewer_threads_where_memory_asks_for_that() -> None:
    size = ProblemSize(n=384_000, d=2048, m=10, blocks=8, features=3 * GIB, keeps_duals=True)
    narrow, threads = plan_alone(600 * MIB, size, 8, GIB)
    assert threads == 1
    assert narrow.dual_bytes + narrow.cache_bytes < 100 * MIB
    roomy, threads = plan_alone(8 * GIB, size, 8, GIB)
    assert (threads, roomy.cache_bytes, roomy.worker_bytes) == (8, GIB, None)
    assert plan_alone(None, size, 8, GIB)[1] == 8
    with pytest.raises(ConfigError, match=r"with 1 worker: give --memory-limit 600MiB"):
        plan_alone(500 * MIB, size, 8, 0)


def test_a_process_alone_is_filled_as_far_as_a_worker() -> None:
    """At the least limit there is room for what each thread needs, and some to spare."""
    size = ProblemSize(n=384_000, d=2048, m=10, blocks=8, features=3 * GIB, keeps_duals=False)
    edge = next(limit for limit in range(400 * MIB, GIB, MIB) if _accepted(limit, size))
    plan, threads = plan_alone(edge, size, 1, GIB)
    assert (threads, plan.cache_bytes) == (1, pytest.approx(0, abs=MIB))
    roomier = plan_alone(edge + 100 * MIB, size, 1, GIB)[0]
    assert roomier.cache_bytes == pytest.approx(100 * MIB * FILLED, abs=MIB)


def _accepted(limit: int, size: ProblemSize) -> bool:
    try:
        plan_alone(limit, size, 1, GIB)
    except ConfigError:
        return False
    return True


def test_a_process_alone_has_a_thread_whatever_was_asked() -> None:
    assert plan_alone(2 * GIB, SMALL, 0, GIB)[1] == 1
    assert plan_alone(None, SMALL, 0, GIB)[1] == 1
    with pytest.raises(ConfigError, match="too small"):
        plan_alone(300 * MIB, SMALL, 0, GIB)


def test_what_a_method_takes_comes_off_the_rest() -> None:
    """Its arrays and what it forms are needed; what it keeps gets half of what nothing else asks for."""
    plain = replace(SMALL, features=8 * GIB)
    newton = replace(plain, method=MethodMemory(arrays=6, formed=8 << 20, kept=400 * MIB))
    free = plan_memory(6 * GIB, plain, 2, 8 * GIB)
    roomy = plan_memory(6 * GIB, newton, 2, 8 * GIB)
    assert free.kept_bytes == 0
    assert roomy.kept_bytes == 400 * MIB
    # Of 64 MiB, the coordinator has a sum from each worker, and a worker its own and a copy.
    formed = 2 * 64 * MIB * FILLED + 2 * 2 * 64 * MIB
    arrays = 6 * 8 * 100 * 10 * FILLED
    spent = free.cache_bytes - roomy.cache_bytes - 400 * MIB
    assert spent == pytest.approx(formed + arrays, abs=MIB)
    narrow, _ = plan_alone(1200 * MIB, replace(newton, blocks=1), 1, 8 * GIB)
    assert 0 < narrow.kept_bytes < 400 * MIB
    assert narrow.kept_bytes == pytest.approx(narrow.cache_bytes, abs=MIB)
    assert plan_on_workers([0], newton, GIB).kept_bytes is None
    assert plan_on_workers([4 * GIB] * 2, newton, GIB).kept_bytes == 400 * MIB


def test_workers_of_another_cluster_keep_their_limits() -> None:
    assert plan_on_workers([0, GIB], IMAGENET, 7).dual_bytes is None
    roomy = plan_on_workers([4 * GIB, 3 * GIB], IMAGENET, 1 << 30)
    assert roomy.worker_bytes is None
    # Dask's defaults pause a worker at 80 % of its limit.
    assert roomy.dual_bytes + roomy.cache_bytes < 0.8 * 6 * GIB
    assert plan_on_workers([500 * MIB] * 2, IMAGENET, 1 << 30).cache_bytes == 0


def test_what_workers_hold_is_shared_among_them_and_not_the_coordinators() -> None:
    atoms = replace(SMALL, held=2 * GIB)
    plain, with_atoms = (plan_memory(16 * GIB, size, 2, 64 * GIB) for size in (SMALL, atoms))
    assert plain.worker_bytes == with_atoms.worker_bytes
    assert plain.cache_bytes - with_atoms.cache_bytes == pytest.approx(2 * GIB, abs=8)


def test_the_one_worker_of_a_single_block_is_not_given_what_others_have() -> None:
    whole = replace(IMAGENET, blocks=1)
    alone, among = (
        plan_on_workers([8 * GIB], whole, 64 * GIB),
        plan_on_workers([8 * GIB] * 8, whole, 64 * GIB),
    )
    assert among == alone
    assert among.dual_bytes + among.cache_bytes < 8 * GIB


@pytest.mark.slow
@pytest.mark.cluster
def test_a_training_stays_below_its_limit(tmp_path: Path) -> None:
    """Kept features alone would be 0.9 GB, and by default a gigabyte is kept."""
    n, d, m = 220_000, 1024, 4
    store = open_store(str(tmp_path / "store"), create=True)
    plan = ChunkPlan.choose(n, d, 4)
    writer = DatasetWriter.begin(store, "wide", d, "float32", plan, {"backbone": "none"})
    labels = np.arange(n, dtype=np.int32) % m
    for unit in range(plan.units):
        span = plan.bounds(unit)
        X = np.zeros((span.rows, d), dtype=np.float32)
        X[np.arange(span.rows), labels[span.start : span.stop]] = 1.0
        writer.write_unit(unit, X, empty_manifest([str(row) for row in range(span.start, span.stop)]))
    writer.commit(labels, np.zeros(n, dtype=np.int8), [f"class {c}" for c in range(m)])
    words = ["train", "--store", store.url, "--method", "fw", "--max-passes", "2", "--transforms", "none"]
    words += ["--memory-limit", "1200MiB", "--workers", "1", "--no-dashboard", "--no-keep-duals", "--json"]
    command = [sys.executable, "-m", "topline", *words]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        TreeMemory(process.pid, 0.1) as memory,
    ):
        answer, errors = process.communicate()
    assert process.returncode == 0, errors
    assert json.loads(answer)["passes"] >= 1
    # A busy machine looks less often, and may not see the peak.
    assert 100 * MIB < memory.peak.pss < 1200 * MIB, memory.peak.by_process
