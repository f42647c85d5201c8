"""The program that measures what a flow and its workers take sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.scale.flow_memory import MIB, main

pytestmark = pytest.mark.benchmarks


def test_the_command_and_its_worker_are_seen(tmp_path: Path) -> None:
    (found,) = main(["--folder", str(tmp_path), "--sizes", "64MiB", "--workers", "1", "--flow-workers"])
    assert found.status in (0, 3)
    # Fewer rows are trained without workers.  Python with NumPy, Numba and Dask takes some tens of MiB.
    (worker,) = found.each_worker
    assert min(found.coordinator, worker - found.data) > 50 * MIB
