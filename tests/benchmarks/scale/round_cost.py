"""What a Frank-Wolfe round costs beside the bare product X W, on the same data in the same run.

    python -m tests.benchmarks.scale.round_cost --n 100000 --d 1024 --m 100 --workers 2 --rounds 20

makes a dataset of noise, or with --relu of noise cut off at zero (once, in --folder), trains on Dask workers
and, after each round, times X W over plain processes that hold the same rows.  Prints one line a round, the
median ratio and the peak memory of all processes of the training together (PSS); exits 1 if the ratio is
above --limit.  With --cache-bytes 0 every round reads the features from disk again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from threadpoolctl import threadpool_limits

from topline.pipeline.cluster import DaskExecutor, open_cluster
from topline.pipeline.options.train import ClusterConfig
from topline.pipeline.rows.partition import TrainingRows
from topline.solvers.core.state import IterationRecord, SolverState
from topline.solvers.losses import TopKHinge
from topline.solvers.run import solve
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import Dataset, DatasetWriter, empty_manifest, find_by_key
from topline.storage.stores import open_store


def make_dataset(folder: Path, n: int, d: int, m: int, dtype: str = "float32", relu: bool = False) -> Dataset:
    """Open the synthetic dataset of that size and type, made in `folder` if it is not there yet."""
    store = open_store(folder, create=True)
    key = f"round-cost-{n}-{d}-{m}-{dtype}-{'relu' if relu else 'noise'}"
    info = find_by_key(store, key)
    if info is not None:
        return Dataset.open(store, info.id)
    plan = ChunkPlan.choose(n, d, np.dtype(dtype).itemsize)
    writer = DatasetWriter.begin(store, key, d, dtype, plan, {"backbone": "synthetic"})
    centres = np.random.default_rng(0).normal(size=(m, d)).astype(np.float32)
    labels = np.random.default_rng(1).integers(0, m, size=n).astype(np.int32)
    for unit in range(plan.units):
        span = plan.bounds(unit)
        noise = np.random.default_rng(unit + 2).standard_normal((span.rows, d), dtype=np.float32)
        X = centres[labels[span.start : span.stop]] + 4.0 * noise
        if relu:
            np.maximum(X, 0.0, out=X)
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        writer.write_unit(unit, X, empty_manifest([f"row{i}" for i in range(span.start, span.stop)]))
    info = writer.commit(labels, np.zeros(n, dtype=np.int8), [f"class {c}" for c in range(m)])
    return Dataset.open(store, info.id)


def bare_worker(pipe: Connection, dataset: Dataset, start: int, stop: int, m: int) -> None:
    """Hold rows start..stop-1 and multiply them by each W that comes."""
    rows = TrainingRows(dataset)
    X = np.empty((stop - start, rows.shape[1]), dtype=np.float32)
    for low in range(start, stop, 8192):
        high = min(stop, low + 8192)
        X[low - start : high - start] = rows[low:high]
    scores = np.empty((stop - start, m), dtype=np.float32)
    with threadpool_limits(1):
        pipe.send("ready")
        while (W := pipe.recv()) is not None:
            np.dot(X, W, out=scores)
            pipe.send(True)


class BareProduct:
    """X W over one process for each run of rows, with BLAS at one thread."""

    def __init__(self, dataset: Dataset, cuts: Sequence[tuple[int, int]], m: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes, self.processes = [], []
        for start, stop in cuts:
            ours, theirs = context.Pipe()
            process = context.Process(target=bare_worker, args=(theirs, dataset, start, stop, m), daemon=True)
            process.start()
            self._pipes.append(ours)
            self.processes.append(process)
        for pipe in self._pipes:
            pipe.recv()

    def seconds(self, W: np.ndarray[Any, Any]) -> float:
        """Time one product."""
        W32 = W.astype(np.float32)
        began = time.perf_counter()
        for pipe in self._pipes:
            pipe.send(W32)
        for pipe in self._pipes:
            pipe.recv()
        return time.perf_counter() - began

    def close(self) -> None:
        """End the processes."""
        for pipe, process in zip(self._pipes, self.processes, strict=True):
            pipe.send(None)
            process.join()


class MemoryPeak:
    """Largest sum of PSS over this process and its children, without those in `apart`."""

    def __init__(self) -> None:
        self.apart: set[int] = set()
        self.bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._stop.wait(0.1):
            total = 0
            for process in [me, *me.children(recursive=True)]:
                try:
                    if process.pid not in self.apart:
                        total += process.memory_full_info().pss
                except psutil.Error:
                    continue
            self.bytes = max(self.bytes, total)

    def stop(self) -> int:
        """End watching and give the peak."""
        self._stop.set()
        self._thread.join()
        return self.bytes


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Train and measure; the figures as plain values."""
    dataset = make_dataset(options.folder, options.n, options.d, options.m, options.dtype, options.relu)
    memory = MemoryPeak()
    rows = TrainingRows(dataset)
    rounds: list[tuple[float, float]] = []
    parts: list[tuple[float, float, float]] = []
    cluster = ClusterConfig(workers=options.workers)
    with open_cluster(cluster) as client, DaskExecutor(client, cache_bytes=options.cache_bytes) as executor:
        clock = {"began": 0.0}
        bare: list[BareProduct] = []

        def compare(record: IterationRecord, state: SolverState) -> None:
            spent = time.perf_counter() - clock["began"]
            if not bare:
                cuts = [(spans[0].start, spans[-1].stop) for spans in executor.owners.values()]
                bare.append(BareProduct(dataset, cuts, options.m))
                memory.apart.update(process.pid for process in bare[0].processes)
                bare[0].seconds(state.W)
            else:
                rounds.append((spent, bare[0].seconds(state.W)))
                parts.append((record.seconds_products, record.seconds_kernels, record.seconds_waiting))
            clock["began"] = time.perf_counter()

        solve(
            rows,
            rows.labels(),
            TopKHinge(5),
            lam=1.0 / len(rows),
            method="fw",
            tol=1e-12,
            max_passes=options.rounds + 1,
            executor=executor,
            callbacks=(compare,),
            m=options.m,
        )
        bare[0].close()
    ratios = [round_seconds / bare_seconds for round_seconds, bare_seconds in rounds]
    return {
        "rounds": rounds,
        "parts": parts,
        "ratio": statistics.median(ratios),
        "round_seconds": statistics.median(seconds for seconds, _ in rounds),
        "bare_seconds": statistics.median(seconds for _, seconds in rounds),
        "peak_bytes": memory.stop(),
    }


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--d", type=int, default=1024)
    parser.add_argument("--m", type=int, default=100)
    parser.add_argument("--dtype", choices=("float16", "float32"), default="float32")
    parser.add_argument("--relu", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cache-bytes", type=int, default=1 << 30)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "topline-benchmarks")
    parser.add_argument("--limit", type=float, default=2.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = run(options)
    if options.json:
        print(json.dumps(figures))
    else:
        for number, ((spent, bare), (products, kernels, waiting)) in enumerate(
            zip(figures["rounds"], figures["parts"], strict=True), start=1
        ):
            print(
                f"round {number:3d}  {spent:.4f} s  bare X W {bare:.4f} s  ratio {spent / bare:.2f}"
                f"  (over workers: products {products:.3f}, kernels {kernels:.3f}; waiting {waiting:.3f})"
            )
        print(f"median ratio {figures['ratio']:.2f}, peak memory {figures['peak_bytes'] / 2**30:.2f} GiB")
    return 0 if figures["ratio"] <= options.limit else 1


if __name__ == "__main__":
    sys.exit(main())
