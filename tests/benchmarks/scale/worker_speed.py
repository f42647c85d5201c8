"""How much faster more worker processes of one thread each train a hinge, to its certificate.

    python -m tests.benchmarks.scale.worker_speed --rows 120000 --d 1024 --m 150 --losses max_hinge topk_hinge

imports rows like those behind a ReLU into a store (once, in --folder), runs `topline.train` on each number of
--workers, and prints a line a run: passes, seconds of the training loop up to the proof in float64, of these
the mean worker's seconds of work and the rest, for messages and waiting, and the ratio to the first line.
With --cut the rows are cut into as many blocks as workers, whatever the model of costs says.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from topline.pipeline.options import ClusterConfig, TrainConfig
from topline.pipeline.training import train
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import Dataset, DatasetWriter, empty_manifest, find_by_key
from topline.storage.runs import read_history
from topline.storage.stores import open_store


@dataclass(frozen=True)
class Trained:
    """One training: its passes, and seconds in all and of the mean worker's work."""

    workers: int
    passes: int
    seconds: float
    work: float
    certified: bool
    notes: tuple[str, ...]


def relu_rows(folder: Path, n: int, d: int, m: int) -> Dataset:
    """Open the dataset of unit rows behind a ReLU around m centres, made in `folder` if it is not there."""
    store, key = open_store(folder, create=True), f"relu-rows-{n}-{d}-{m}"
    info = find_by_key(store, key)
    if info is None:
        plan = ChunkPlan.choose(n, d, 4)
        writer = DatasetWriter.begin(store, key, d, "float32", plan, {"backbone": "synthetic"})
        centres = np.random.default_rng(0).normal(size=(m, d)).astype(np.float32)
        labels = np.random.default_rng(1).integers(0, m, size=n).astype(np.int32)
        for span in map(plan.bounds, range(plan.units)):
            noise = np.random.default_rng(span.start + 2).standard_normal((span.rows, d), dtype=np.float32)
            X = np.maximum(centres[labels[span.start : span.stop]] + 4.0 * noise, 0.0)
            names = [f"row{i}" for i in range(span.start, span.stop)]
            X /= np.linalg.norm(X, axis=1, keepdims=True)
            writer.write_unit(span.start // plan.shard_rows, X, empty_manifest(names))
        info = writer.commit(labels, np.zeros(n, dtype=np.int8), [f"class {c}" for c in range(m)])
    return Dataset.open(store, info.id)


def trained(options: argparse.Namespace, loss: str, workers: int) -> Trained:
    """Train on so many workers of one thread each."""
    dataset = relu_rows(options.folder, options.rows, options.d, options.m)
    config = TrainConfig(
        store=str(options.folder), dataset=dataset.info.id, loss=loss, C=options.C, tol=options.tol,
        k=5 if loss == "topk_hinge" else None, blocks=workers if options.cut else None,
        method=options.method, max_passes=options.passes,
    )  # fmt: skip
    cluster = ClusterConfig(workers=workers, threads_per_worker=1, dashboard=False, cache_bytes=4 << 30)
    found = train(config, cluster)
    history = [line for line in read_history(open_store(options.folder), found.run) if "round" in line]
    busy = sum(line["seconds_products"] + line["seconds_kernels"] for line in history)
    certified = found.certificate is not None and found.certificate.valid
    return Trained(workers, found.passes, found.seconds, busy / workers, certified, found.notes)


def main(arguments: Sequence[str] | None = None) -> list[list[Trained]]:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=120_000)
    parser.add_argument("--d", type=int, default=1024)
    parser.add_argument("--m", type=int, default=150)
    parser.add_argument("--losses", nargs="+", default=["max_hinge", "topk_hinge"])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--cut", action="store_true", help="into as many blocks as workers, whatever pays")
    parser.add_argument("--method", default="auto")
    parser.add_argument("--C", type=float, default=1.0)
    parser.add_argument("--tol", type=float, default=1e-3)
    parser.add_argument("--passes", type=int, default=400)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "topline-benchmarks")
    options = parser.parse_args(arguments)
    print(f"{options.rows:,} rows of {options.d:,} features, {options.m} classes, C = {options.C:g}")
    print(f"{'loss':>12}{'workers':>9}{'passes':>8}{'seconds':>9}{'work':>8}{'rest':>8}{'ratio':>7}")
    table = []
    for loss in options.losses:
        line: list[Trained] = []
        for workers in options.workers:
            line.append(found := trained(options, loss, workers))
            print(
                f"{loss:>12}{workers:>9}{found.passes:>8}{found.seconds:>9.1f}{found.work:>8.1f}"
                f"{found.seconds - found.work:>8.1f}{line[0].seconds / found.seconds:>7.2f}"
                f"{'' if found.certified else '  not certified'}  {'; '.join(found.notes)}",
                flush=True,
            )
        table.append(line)
    return table


if __name__ == "__main__":
    main(sys.argv[1:])
