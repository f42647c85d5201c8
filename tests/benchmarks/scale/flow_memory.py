"""What a training and its Dask workers take: python -m tests.benchmarks.scale.flow_memory --folder FOLDER.

For each size a store is made once with so many bytes of training rows in float32, and `topline train` reads
them with one and with two workers and no limit, and with one as a Prefect flow.  Prints the peak of the
resident memory of the process of the command, which coordinates, and of the largest worker, looked at ten
times a second, and how many workers were started: no more than the rows have blocks.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
from dask.utils import parse_bytes

from tests.benchmarks.harness import SCRATCH, read_options
from tests.benchmarks.scale.memory_limits import MIB, wide_store
from tests.benchmarks.tree_memory import tree
from topline.storage.datasets import Dataset

PASSES = 3
SECONDS = 0.1


@dataclass(frozen=True)
class FlowMemory:
    """A training of `data` bytes, asked for so many workers: most bytes of the command and of each worker."""

    data: int
    workers: int
    flow: bool
    status: int
    coordinator: int
    each_worker: tuple[int, ...]

    def __str__(self) -> str:
        largest = max(self.each_worker, default=0)
        sizes = f"{self.data / MIB:7.0f} {self.workers:7d} {len(self.each_worker):7d}"
        return (
            f"{sizes} {'yes' if self.flow else 'no':>5} {self.coordinator / MIB:11.0f} {largest / MIB:14.0f}"
        )


def measured(dataset: Dataset, workers: int, *, flow: bool = False) -> FlowMemory:
    """Train some passes, as a flow on a server of its own if asked, and watch every process."""
    words = ["train", "--store", dataset.store.url, "--dataset", dataset.info.id, "--json", "--no-certify"]
    words += ["--workers", str(workers), "--max-passes", str(PASSES), "--tol", "1e-6"]
    words += ["--flow"] * flow
    peaks: dict[int, int] = {}
    nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with (
        tempfile.TemporaryDirectory() as home,
        subprocess.Popen(
            [sys.executable, "-m", "topline", *words], env={**os.environ, "PREFECT_HOME": home}, **nowhere
        ) as process,
    ):
        while process.poll() is None:
            for pid, bytes_now in _resident(process.pid).items():
                peaks[pid] = max(peaks.get(pid, 0), bytes_now)
            time.sleep(SECONDS)
    coordinator = peaks.pop(process.pid, 0)
    size = 4 * dataset.info.n_rows * dataset.info.d
    return FlowMemory(size, workers, flow, process.returncode, coordinator, tuple(sorted(peaks.values())))


def _resident(pid: int) -> dict[int, int]:
    """Return the bytes of the process `pid` and of the workers that it has started."""
    found = {}
    for process in tree(pid):
        try:
            # A program that a worker starts has the worker's command line for a moment.
            worker = process.ppid() == pid and "spawn_main" in " ".join(process.cmdline())
            if process.pid == pid or worker:
                found[process.pid] = process.memory_info().rss
        except psutil.Error:
            continue
    return found


def main(arguments: Sequence[str] | None = None) -> list[FlowMemory]:
    """Measure and print; return what was measured."""
    options = read_options(
        __doc__, arguments, folder=SCRATCH, sizes=["64MiB", "256MiB", "512MiB"], workers=[1, 2],
        flow_workers=[1],
    )  # fmt: skip
    head = f"{'rows':>7} {'workers':>7} {'started':>7} {'flow':>5} {'coordinator':>11}"
    print(f"{head} {'largest worker':>14}  (MiB)", flush=True)
    found = []
    for text in options.sizes:
        dataset = wide_store(options.folder / text, int(parse_bytes(text)))
        asked = [(workers, False) for workers in options.workers]
        for workers, flow in [*asked, *((count, True) for count in options.flow_workers)]:
            found.append(measured(dataset, workers, flow=flow))
            print(found[-1], flush=True)
    return found


if __name__ == "__main__":
    # A budget of passes is an end.
    sys.exit(0 if all(one.status in (0, 3) for one in main()) else 1)
