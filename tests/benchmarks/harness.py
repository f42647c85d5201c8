"""What the benchmarks have in common: options, CPU seconds, tables, and the data that they read."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from zipfile import ZipFile

import numpy as np

from tests.benchmarks.datasets import DataSet, load
from topline.pipeline.ingest import extract
from topline.pipeline.options import ClusterConfig, ExtractConfig
from topline.pipeline.rows import TrainingRows
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import Dataset, DatasetWriter, empty_manifest, find_by_key
from topline.storage.stores import open_store

T = TypeVar("T")
#: No worker processes.
HERE = ClusterConfig(workers=0)
#: Where large stores are made and kept unless said otherwise.
SCRATCH = Path(tempfile.gettempdir()) / "topline-benchmarks"


def read_options(doc: str | None, arguments: Sequence[str] | None, **defaults: Any) -> argparse.Namespace:
    """Read an option --NAME for each default: a list takes any number of values, False is a flag.

    A type in the place of a default is that of an option that is None where it is not given.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        option = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(option, action="store_true")
        elif isinstance(default, type):
            parser.add_argument(option, type=default)
        elif isinstance(default, list):
            parser.add_argument(option, type=type(default[0]), nargs="*", default=default)
        else:
            parser.add_argument(option, type=type(default), default=default)
    return parser.parse_args(arguments)


def with_cpu(work: Callable[[], T]) -> tuple[T, float]:
    """Do some work; also return its CPU seconds."""
    began = time.process_time()
    return work(), time.process_time() - began


def print_row(*cells: object) -> None:
    """Print a row of a table in Markdown."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def print_head(*names: object) -> None:
    """Print the head of a table in Markdown."""
    print_row(*names)
    print("|" + "---|" * len(names))


def sets_there(names: Sequence[str], folder: Path, *, quick: bool = False) -> Iterator[DataSet]:
    """Yield the sets whose files are there, and say which are not."""
    for name in names:
        try:
            yield load(name, folder, quick=quick)
        except FileNotFoundError as missing:
            print(f"{name}: skipped, {missing.filename} is not there", file=sys.stderr)


def unpacked(archive: Path, place: Path) -> Path:
    """Unpack an archive; FileNotFoundError without it."""
    with ZipFile(archive) as files:
        files.extractall(place)
    return place


def features_of(images: Path, store: Path, **options: Any) -> tuple[str, Dataset]:
    """Describe pictures in this process; return the URL of the new store and its dataset."""
    config = ExtractConfig(images=str(images), store=str(store), **options)
    extract(config, HERE)
    return config.store, Dataset.open(open_store(config.store))


def rows_and_labels(dataset: Dataset, split: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """Return the features of a split and their labels."""
    rows = TrainingRows(dataset, split)
    return np.asarray(rows[0 : len(rows)]), rows.labels()


def kept_dataset(
    folder: Path, key: str, labels: np.ndarray, d: int, rows: Callable[[int, slice], np.ndarray]
) -> Dataset:
    """Open a dataset by its key; it is made where it is not there, unit by unit, of `rows(unit, span)`."""
    store, n, m = open_store(folder, create=True), len(labels), int(labels.max()) + 1
    info = find_by_key(store, key)
    if info is None:
        plan = ChunkPlan.choose(n, d, 4)
        writer = DatasetWriter.begin(store, key, d, "float32", plan, {"backbone": "synthetic"})
        for unit in sorted(set(range(plan.units)) - writer.done_units()):
            span = plan.bounds(unit)
            names = [f"row{row}" for row in range(span.start, span.stop)]
            writer.write_unit(unit, rows(unit, slice(span.start, span.stop)), empty_manifest(names))
        split = np.zeros(n, dtype=np.int8)
        info = writer.commit(labels.astype(np.int32), split, [f"class {c}" for c in range(m)])
    return Dataset.open(store, info.id)
