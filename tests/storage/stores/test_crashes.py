"""Killed writers and full disks: nothing half-written is ever seen, and the work goes on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.small_disk import small_disk
from tests.storage.samples import dense, write_dataset
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import Dataset, check_dataset, list_datasets
from topline.storage.errors import DiskFullError
from topline.storage.stores import Store, open_store
from topline.storage.stores.local import PARTIAL
from topline.storage.verification import verify_store

ROOT = Path(__file__).resolve().parents[3]


_ONE_SENTENCE = """
import sys
import numpy as np
from topline.storage.arrays.chunking import ChunkPlan
from topline.storage.errors import StorageError
from topline.storage.stores import open_store
from tests.storage.samples import write_dataset
exec(sys.argv[2])
X = np.random.default_rng(0).standard_normal((4096, 512)).astype(np.float32)
try:
    write_dataset(open_store(sys.argv[1]), X, ChunkPlan(4096, 128, 512), key="too large")
except StorageError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def run_python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "dev", "-c", code, *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", megabytes=4) as folder:
        yield folder


def test_a_full_disk_is_one_sentence_and_nothing_is_torn(disk: Path) -> None:
    store = open_store(disk / "store", create=True)
    X = dense(101, 6)
    before = write_dataset(store, X, ChunkPlan(101, 8, 32))
    outcome = run_python(_ONE_SENTENCE, store.url, "")
    assert outcome.returncode == 1
    assert outcome.stdout == ""
    lines = outcome.stderr.splitlines()
    assert len(lines) == 1, outcome.stderr
    assert lines[0].startswith("DiskFullError: no space is left to write ")
    assert "free some space" in lines[0]
    assert list_datasets(store) == [before]
    assert not any(path.endswith(PARTIAL) for path in store.walk())
    assert check_dataset(Dataset.open(store), deep=True) == []
    np.testing.assert_array_equal(Dataset.open(store).rows(0, 101), X)
    assert {finding.kind for finding in verify_store(store)} == {"staging"}


@pytest.mark.slow
def test_a_limit_on_file_sizes_is_a_full_disk(local_store: Store) -> None:
    before = write_dataset(local_store, dense(101, 6), ChunkPlan(101, 8, 32))
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))"
    outcome = run_python(_ONE_SENTENCE, local_store.url, limit)
    assert outcome.returncode == 1
    assert len(outcome.stderr.splitlines()) == 1, outcome.stderr
    assert outcome.stderr.startswith("DiskFullError: no space is left to write ")
    assert list_datasets(local_store) == [before]
    assert not any(path.endswith(PARTIAL) for path in local_store.walk())


def test_a_full_disk_in_the_history_leaves_whole_lines(disk: Path) -> None:
    from topline.storage.runs import HistoryWriter, read_history

    store = open_store(disk / "store", create=True)
    writer = HistoryWriter(store, "r0001")
    record = {"text": "x" * 100_000}
    written: list[int] = []

    def append_until_full() -> None:
        for number in range(100):
            writer.append(record)
            written.append(number)

    with pytest.raises(DiskFullError, match=r"history\.jsonl"):
        append_until_full()
    assert 0 < len(written) < 100
    assert read_history(store, "r0001") == [record] * len(written)
    writer.close()


def test_a_model_or_checkpoint_that_finds_no_room_leaves_none(disk: Path) -> None:
    from tests.storage.models.test_records import record
    from topline.storage.models import list_models, save_model
    from topline.storage.runs import latest_checkpoint, save_checkpoint

    store = open_store(disk / "store", create=True)
    small, large = np.ones(10), np.random.default_rng(0).standard_normal(10**6)
    save_checkpoint(store, "r0001", 1, {"W": small}, None, {})
    with pytest.raises(DiskFullError):
        save_checkpoint(store, "r0001", 2, {"W": large}, None, {})
    with pytest.raises(DiskFullError):
        save_model(store, record(), {"W": large})
    kept = latest_checkpoint(store, "r0001")
    assert kept is not None
    assert kept.round == 1
    assert list_models(store) == []
    assert (store.free_bytes() or 0) > 3_000_000, "what did not fit was removed again"
