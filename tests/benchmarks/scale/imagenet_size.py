"""Training on features of ImageNet's shape: passes an hour, memory of all processes, share of the machine.

    python -m tests.benchmarks.scale.imagenet_size --folder /data/big

makes the store once (n = 1,281,167, d = 4,096, m = 1,000, float16: 10.5 GB before it is packed, 5 GB after),
measures bare float32 products and reading, then runs `topline train` on two workers of one thread each while
the memory of all its processes is sampled, and prints what came of it.  Of the options, --memory-limit '' is
none, --sizes takes as many sizes, each twice the one before, --makers processes make the store, --make-only
stops there, --keep leaves checkpoints and history, --read-bytes are read and --bare-seconds multiplied for.

What a pass is: `fw` has one a round, which makes the scores X W (2 n d m floating-point operations) and
multiplies the few non-zeros of the vertices by X (2 n d (k + 1)).  `dual_ascent` has one for the evaluation,
2 n d m, and one for each sweep over all rows: 2 n d m for the scores of every row at the weights of its turn,
and the few changes of its dual row times x.  So 2 n d m a pass are counted, and the share of the bare product
is that over seconds and speed.  Beside it stands the share counted as if the way back were dense too (4 n d m
for fw and sweeps), by which other reports go.  The sizes are those after the transforms (d + 1 with a bias).
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from tests.benchmarks.harness import SCRATCH, read_options
from tests.benchmarks.scale.imagenet_store import imagenet_store
from tests.benchmarks.tree_memory import TreeMemory
from topline.solvers.core.rows import tile_rows
from topline.storage.datasets import Dataset
from topline.storage.runs import read_history

#: Rows of the tiles that bare products are tried with, besides the solver's own.
TILES = (256, 1024, 4096)
COMMAND = (sys.executable, "-m", "topline", "train")


def bare_speed(pool: Pool, processes: int, d: int, m: int, seconds: float) -> dict[int, float]:
    """Give float32 operations a second of X W by rows of X, of all single-threaded processes at once."""
    measured = partial(product_speed, d=d, m=m, seconds=seconds)
    sizes = sorted({tile_rows(d, m, 4), *TILES})
    return {rows: sum(pool.map(measured, [rows] * processes, 1)) for rows in sizes}


def product_speed(rows: int, d: int, m: int, seconds: float) -> float:
    """Multiply for so many seconds in this process; tiles change, so that X comes from memory."""
    random = np.random.default_rng(0)
    tiles = random.standard_normal((max(2, 16384 // rows), rows, d), dtype=np.float32)
    W = random.standard_normal((d, m), dtype=np.float32)
    scores = np.empty((rows, m), dtype=np.float32)
    with threadpool_limits(1):
        np.dot(tiles[0], W, out=scores)
        began, done = time.perf_counter(), 0
        while time.perf_counter() < began + seconds:
            np.dot(tiles[done % len(tiles)], W, out=scores)
            done += 1
        return 2.0 * rows * d * m * done / (time.perf_counter() - began)


def reading_speed(pool: Pool, processes: int, dataset: Dataset, most: int) -> dict[str, float | None]:
    """Give bytes a second of the bare files, and unpacked of the library's reader, in so many processes.

    At most `most` bytes of rows are read.  Cold means that the system's cache was emptied, which takes root;
    None where that cannot be done.
    """
    plan, row_bytes = dataset.plan, dataset.info.d * np.dtype(dataset.info.dtype).itemsize
    units = list(range(plan.units))[: most // (plan.shard_rows * row_bytes)]
    shares = [(dataset, units[part::processes]) for part in range(processes)]
    speeds: dict[str, float | None] = {}
    for name, act in (
        ("files, cold", read_files),
        ("reader, cold", read_units),
        ("reader, warm", read_units),
    ):
        if not name.endswith("warm") and not empty_cache():
            speeds[name] = None
            continue
        began = time.perf_counter()
        read = sum(pool.starmap(act, shares, 1))
        speeds[name] = read / (time.perf_counter() - began)
    return speeds


def read_units(dataset: Dataset, units: Sequence[int]) -> int:
    """Read whole units as training does; give their bytes unpacked."""
    done = 0
    for span in (dataset.plan.bounds(unit) for unit in units):
        done += np.asarray(dataset.rows(span.start, span.stop)).nbytes
    return done


def read_files(dataset: Dataset, units: Sequence[int]) -> int:
    """Read the files of some units without unpacking them; give their bytes."""
    lists = map(dataset.unit_files, units)
    paths = [files.place(entry.path) for files in lists for entry in files.entries]
    return sum(len(dataset.store.read_bytes(path)) for path in paths)


def machine(options: argparse.Namespace, dataset: Dataset) -> float:
    """Print what the machine's products and its reading reach; give the operations a second."""
    count = options.workers
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        speeds = bare_speed(pool, count, options.d, options.m, options.bare_seconds)
        shown = ", ".join(f"{speed / 1e9:.0f} in tiles of {rows} rows" for rows, speed in speeds.items())
        print(f"bare float32 products, {count} processes at once, GFLOP/s: {shown}", flush=True)
        if options.read_bytes:
            for name, speed in reading_speed(pool, count, dataset, options.read_bytes).items():
                print(
                    f"{name}: " + ("needs root" if speed is None else f"{speed / 1e6:.0f} MB/s"), flush=True
                )
    return max(speeds.values())


def empty_cache() -> bool:
    """Empty the system's cache of files; whether that was possible."""
    subprocess.run(["sync"], check=True)
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n", encoding="ascii")
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class Training:
    """What one `topline train` came to: its JSON result and rounds, memory and seconds of the command."""

    result: dict[str, Any]
    rounds: list[dict[str, Any]]
    workers: int
    pss: int
    rss: int
    by_process: dict[str, int]
    seconds: float

    @property
    def seconds_per_pass(self) -> float:
        """Median over rounds of seconds for each of their passes; the last measurement is not in any."""
        ends = [(0, 0.0), *((each["passes"], each["seconds"]) for each in self.rounds)]
        return statistics.median(
            float(t1 - t0) / float(p1 - p0) for (p0, t0), (p1, t1) in itertools.pairwise(ends)
        )

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of all rounds by what a worker does."""
        names = ("products", "kernels", "waiting")
        spent = {name: sum(each[f"seconds_{name}"] for each in self.rounds) for name in names}
        shared = {name: spent[name] / self.workers for name in names[:2]}
        return {**shared, "waiting": spent["waiting"]}


def train(options: argparse.Namespace, dataset: Dataset) -> Training:
    """Run the command and watch the memory of its processes."""
    words = ["--store", dataset.store.url, "--dataset", dataset.info.id, "--method", options.method]
    words += ["--loss", options.loss, "--C", options.C, "--tol", options.tol, "--max-passes", options.passes]
    words += ["--workers", options.workers]
    words += ["--threads-per-worker", 1, "--no-dashboard", "--json"]
    words += ["--memory-limit", options.memory_limit] if options.memory_limit else []
    words += ["--cache-bytes", options.cache_bytes] if options.cache_bytes is not None else []
    words += ["--blocks", options.blocks] if options.blocks is not None else []
    began = time.perf_counter()
    with (
        subprocess.Popen([*COMMAND, *map(str, words)], stdout=subprocess.PIPE, text=True) as process,
        TreeMemory(process.pid) as memory,
    ):
        answer, _ = process.communicate()
    seconds = time.perf_counter() - began
    result: dict[str, Any] = json.loads(answer)
    if "error" in result:
        raise SystemExit(f"topline train failed: {result['error']['message']}")
    rounds = [each for each in read_history(dataset.store, result["run"]) if "passes" in each]
    peak = memory.peak
    return Training(result, rounds, options.workers, peak.pss, memory.peak_rss, peak.by_process, seconds)


def report(training: Training, dataset: Dataset, bare: float, method: str) -> dict[str, Any]:
    """Print what came of a training; give it as plain values."""
    result, pass_seconds = training.result, training.seconds_per_pass
    certificate = result["certificate"]
    scores, passes = 2.0 * result["n"] * result["d"] * result["m"], result["passes"]
    share = scores / pass_seconds / bare
    # Passes that only measure have no way back.
    measuring = 0 if method == "fw" else len(training.rounds)
    facts = {
        "sizes": f"n {result['n']:,}, d {result['d']:,}, m {result['m']:,}",
        "on disk": f"{stored_bytes(dataset) / 1e9:.2f} GB",
        "passes": f"{passes} in {len(training.rounds)} rounds",
        "seconds per pass": f"{pass_seconds:.1f} ({3600 / pass_seconds:.1f} passes an hour)",
        "share of bare products": f"{share:.0%} at 2 n d m a pass"
        f" ({share * (2 * passes - measuring) / passes:.0%} with the way back as if dense)",
        "a worker's seconds": ", ".join(f"{name} {spent:.1f}" for name, spent in training.parts.items())
        + " in all rounds",
        "seconds": f"training {result['seconds']:.1f}, certificate {certificate['seconds']:.1f}"
        f", the whole command {training.seconds:.1f}",
        "peak memory": f"{training.pss / 1e9:.2f} GB PSS ({training.pss / 2**30:.2f} GiB)"
        f", {training.rss / 1e9:.2f} GB RSS, of all processes",
        "P, D, gap": f"{result['primal']:.8g}, {result['dual']:.8g}, {result['relative_gap']:.3e} relative",
        "certificate": f"{'valid' if certificate['valid'] else 'NOT VALID'}: P {certificate['primal']:.8g},"
        f" D {certificate['dual']:.8g}, rests on {certificate['rests_on']}",
    }
    for name, value in facts.items():
        print(f"{name:>24}: {value}", flush=True)
    for process, size in sorted(training.by_process.items(), key=lambda item: -item[1]):
        print(f"{'':>24}  {size / 1e9:.2f} GB {process}")
    return {"pass_seconds": pass_seconds, "share": share, "pss": training.pss, **result}


def stored_bytes(dataset: Dataset) -> int:
    """Give the bytes that a dataset's features take on disk."""
    lists = map(dataset.unit_files, range(len(dataset.units)))
    return sum(entry.size for files in lists for entry in files.entries)


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Run the command."""
    options = read_options(
        __doc__, arguments, folder=SCRATCH, rows=1_281_167, d=4096, m=1000, method="fw", loss="topk_hinge",
        tol=1e-12, passes=1, C=1.0, workers=2, blocks=int, memory_limit="5.5GiB", cache_bytes=int, sizes=1,
        makers=2, make_only=False, keep=False, read_bytes=4 << 30, bare_seconds=2.0,
    )  # fmt: skip
    sizes = [options.rows * (1 << number) >> (options.sizes - 1) for number in range(options.sizes)]
    datasets = [imagenet_store(options.folder, n, options.d, options.m, options.makers) for n in sizes]
    if options.make_only:
        return []
    bare = machine(options, datasets[-1])
    found = []
    for dataset in datasets:
        print()
        training = train(options, dataset)
        found.append(report(training, dataset, bare, options.method))
        if not options.keep:
            dataset.store.delete_tree(f"runs/{training.result['run']}")
    if len(found) > 1:
        print()
        for each in found:
            cost = 1e6 * each["pass_seconds"] / each["n"]
            print(f"n = {each['n']:>9,}: {each['pass_seconds']:.2f} s a pass, {cost:.1f} microseconds a row")
    return found


if __name__ == "__main__":
    main()
