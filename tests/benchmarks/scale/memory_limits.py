"""What `--memory-limit` is worth: python -m tests.benchmarks.scale.memory_limits --folder FOLDER.

For each limit a store is made once whose training rows are five times as large in float32, and every way to
train reads them under the limit: Frank-Wolfe, dual ascent, auto, an exact kernel, and a sweep.  Prints the
most memory of all processes of the command at one time: their PSS, in which a page that two share counts half
in each, looked at ten times a second, and the sum of their RSS, which is never less.  A limit that is too
small is refused, with one that is not.  Processor seconds are those of all processes.  A way ends after a
pass or two, a kernel after a minute: what each takes is there from its first rounds on.  Exit status 1 where
PSS exceeds the limit.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from dask.utils import parse_bytes

from tests.benchmarks.harness import SCRATCH, kept_dataset, read_options
from tests.benchmarks.tree_memory import TreeMemory
from topline.storage.datasets import Dataset

MIB = 1 << 20
D, M = 2048, 10
WAYS = {
    "fw": ("train", "--method", "fw", "--max-passes", "1", "--tol", "1e-6"),
    "dual ascent": ("train", "--method", "dual_ascent", "--max-passes", "2", "--tol", "1e-6"),
    "auto": ("train", "--max-passes", "3", "--tol", "1e-6"),
    "sweep": ("sweep", "--C", "0.01", "--k", "1,3", "--folds", "2", "--max-passes", "1"),
    "kernel": ("train", "--kernel", "rbf", "--time-limit", "60", "--transforms", "none", "--no-certify"),
}


@dataclass(frozen=True)
class Peak:
    """A command under a limit: its exit status, and the most memory of its processes at one time."""

    way: str
    limit: int
    workers: int
    data: int
    status: int
    pss: int
    rss: int
    cpu_seconds: float
    said: str

    @property
    def refused(self) -> bool:
        """Whether the command said at once that the limit cannot be kept, and which one can."""
        return self.status == 2 and "--memory-limit" in self.said

    @property
    def kept(self) -> bool:
        """Whether the command came to its end below the limit; a budget of passes is an end."""
        return (self.status in (0, 3) or self.refused) and self.pss < self.limit

    def __str__(self) -> str:
        sizes = f"{self.pss / MIB:8.0f} {self.rss / MIB:8.0f} {self.pss / self.limit:6.0%}"
        where = f"{self.limit / MIB:6.0f} {self.data / MIB:7.0f} {self.workers:7d}"
        said = self.said if self.refused or not self.kept else ""
        return f"{self.way:<12} {where} {sizes} {self.cpu_seconds:6.0f}  {said}"


def wide_store(folder: Path, size: int, d: int = D) -> Dataset:
    """Open the dataset of `size` bytes of features; made where it is not there: means and noise."""
    n = size // (4 * d)
    labels, means = np.random.default_rng(0).integers(0, M, n), np.random.default_rng(1).random((M, d)) < 0.05

    def rows(unit: int, span: slice) -> np.ndarray:
        of_rows = means[labels[span]]
        noise = np.random.default_rng((2, unit)).integers(0, 8, of_rows.shape, dtype=np.uint8)
        return (noise + of_rows).astype(np.float32)

    return kept_dataset(folder, f"wide-{n}-{d}", labels, d, rows)


def measured(dataset: Dataset, way: str, limit: int, workers: int) -> Peak:
    """Run the command and watch all its processes."""
    words = [*WAYS[way], "--store", dataset.store.url, "--dataset", dataset.info.id, "--json"]
    words += ["--workers", str(workers), "--memory-limit", f"{limit // MIB}MiB"]
    before = _cpu_of_children()
    with (
        subprocess.Popen(
            [sys.executable, "-m", "topline", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
        TreeMemory(process.pid, 0.1, 1.0) as memory,
    ):
        answer, errors = process.communicate()
    said = json.loads(answer).get("error", {}).get("message", "") if answer else errors[-300:]
    size = 4 * dataset.info.n_rows * dataset.info.d
    cpu = _cpu_of_children() - before
    return Peak(way, limit, workers, size, process.returncode, memory.peak.pss, memory.peak_rss, cpu, said)


def _cpu_of_children() -> float:
    """Return the processor seconds of all processes that ended, each waited for by its parent."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(arguments: Sequence[str] | None = None) -> list[Peak]:
    """Measure and print; return the peaks."""
    options = read_options(
        __doc__, arguments, folder=SCRATCH, limits=["600MiB", "1GiB", "2GiB"], ways=list(WAYS), times=5.0,
        workers=int,
    )  # fmt: skip
    where = f"{'limit':>6} {'rows':>7} {'workers':>7}"
    print(f"{'':<12} {where} {'PSS':>8} {'RSS':>8} {'of it':>6} {'CPU s':>6}  (MiB)", flush=True)
    found = []
    for text in options.limits:
        limit = int(parse_bytes(text))
        dataset = wide_store(options.folder / text, int(options.times * limit))
        workers = 2 * (limit >= 2 << 30) if options.workers is None else options.workers
        for way in options.ways:
            found.append(measured(dataset, way, limit, workers))
            print(found[-1], flush=True)
    return found


if __name__ == "__main__":
    sys.exit(0 if all(peak.kept for peak in main()) else 1)
