"""Independent pieces of work on all cores; the compiled kernels let go of Python's lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import TypeVar

from tests.reproduce.table import Setting
from topline.solvers.blas_threads import one_blas_thread
from topline.solvers.run import available_cores

T = TypeVar("T")


def run_all(
    setting: Setting, stage: str, jobs: Sequence[Callable[[], T]], unit: str = "trainings", *, cores: int = 0
) -> list[T]:
    """Run jobs and give their results in order; the first error ends the rest.

    `cores` is 1 where the jobs are timed; 0 stands for all.
    """
    setting.begin(stage, len(jobs), unit)
    pool = ThreadPoolExecutor(max_workers=cores or available_cores(), thread_name_prefix="reproduce")
    try:
        with one_blas_thread():
            waiting = {pool.submit(job): place for place, job in enumerate(jobs)}
            futures = sorted(waiting, key=waiting.__getitem__)
            left = set(futures)
            while left:
                done, left = wait(left, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
                    setting.advance()
        return [future.result() for future in futures]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
