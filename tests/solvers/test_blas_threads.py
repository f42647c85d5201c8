"""BLAS keeps to one thread while blocks compute, whichever thread asks for it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from threadpoolctl import ThreadpoolController, threadpool_limits

from topline.solvers import crew
from topline.solvers.crew import available_cores, one_blas_thread, threads_here


def threads_of_blas() -> set[int]:
    return {info["num_threads"] for info in ThreadpoolController().select(user_api="blas").info()}


def threads_inside() -> set[int]:
    with one_blas_thread():
        return threads_of_blas()


@pytest.fixture(autouse=True)
def two_threads():
    """As on a machine of several cores; this thread is the one that threadpoolctl listens to from then on."""
    with threadpool_limits(2, user_api="blas"):
        yield


def test_any_thread_may_ask_and_what_was_is_there_again() -> None:
    """threadpoolctl 3.8 heeds one thread of a process alone: on Dask's workers nobody was heard."""
    if threads_of_blas() != {2}:
        pytest.skip("this BLAS was built for one thread")
    assert threads_inside() == {1}
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(threads_inside).result() == {1}
        with one_blas_thread():
            # The first to leave does not let BLAS loose on the others.
            assert pool.submit(threads_inside).result() == {1}
            assert threads_of_blas() == {1}
    assert threads_of_blas() == {2}


def test_a_job_may_keep_as_many_threads_busy_as_blas_has_while_others_work() -> None:
    alone = threads_here()
    with one_blas_thread():
        assert threads_here() == alone


@pytest.mark.parametrize(
    ("quota", "cores"), [("100000 100000", 1), ("50000 100000", 1), ("250000 100000", 3), ("max 100000", 8)]
)
def test_the_quota_of_a_container_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str, cores: int
) -> None:
    (tmp_path / "cpu.max").write_text(quota + "\n")
    monkeypatch.setattr(crew, "_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert available_cores() == cores
    assert threads_here() == min(cores, 2)
