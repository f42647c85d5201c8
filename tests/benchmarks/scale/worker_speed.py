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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.benchmarks.harness import SCRATCH, kept_dataset, read_options
from topline.pipeline.options import ClusterConfig, TrainConfig
from topline.pipeline.training import train
from topline.storage.datasets import Dataset
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
    centres = np.random.default_rng(0).normal(size=(m, d)).astype(np.float32)
    labels = np.random.default_rng(1).integers(0, m, size=n)

    def rows(_unit: int, span: slice) -> np.ndarray:
        size = span.stop - span.start, d
        noise = np.random.default_rng(span.start + 2).standard_normal(size, dtype=np.float32)
        X = np.maximum(centres[labels[span]] + 4.0 * noise, 0.0)
        return X / np.linalg.norm(X, axis=1, keepdims=True)

    return kept_dataset(folder, f"relu-rows-{n}-{d}-{m}", labels, d, rows)


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
    options = read_options(
        __doc__, arguments, rows=120_000, d=1024, m=150, losses=["max_hinge", "topk_hinge"], workers=[1, 2],
        cut=False, method="auto", C=1.0, tol=1e-3, passes=400, folder=SCRATCH,
    )  # fmt: skip
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
