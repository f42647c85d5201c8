"""How memory is shared out among the cells of a sweep that go together over rows that are read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from topline.pipeline.cluster.memory_plan import FILLED, MIB, WORKER_BYTES
from topline.pipeline.options import ClusterConfig
from topline.pipeline.sweep.plan import SharedMemory
from topline.solvers.blocks import swept_bytes
from topline.solvers.operations import most_open


class Rows:
    """Rows that nobody reads."""

    def __init__(self, n: int, d: int, m: int) -> None:
        self.shape, self.nbytes = (n, d), 4 * n * d
        self.dataset = SimpleNamespace(info=SimpleNamespace(m=m))

    def __len__(self) -> int:
        return self.shape[0]


@pytest.mark.parametrize(
    ("limit", "n"), [("1500MiB", 40_000), ("2GiB", 200_000), ("3GiB", 400_000), ("4GiB", 200_000)]
)
def test_what_sweeps_open_of_every_cell_fits_beside_the_rest(limit: str, n: int) -> None:
    """Fifteen cells at once opened 48 MiB each that nobody had counted, and their worker was ended."""
    d, m = 1024, 100
    rows: Any = Rows(n, d, m)
    found, together = SharedMemory(rows, ClusterConfig(workers=1, memory_limit=limit), 1, 15).budgets()
    assert found.worker_bytes is not None
    assert found.dual_bytes is not None
    packed = most_open(found.dual_bytes, n, d, m) == 0
    held = found.cache_bytes < rows.nbytes or packed
    swept = together * swept_bytes(n, d, m, packed=packed) if held else 0
    taken = WORKER_BYTES + min(found.cache_bytes, rows.nbytes) + found.dual_bytes + swept
    assert taken <= FILLED * found.worker_bytes + MIB


@pytest.mark.parametrize(("limit", "least"), [("4GiB", 2), ("8GiB", 15)])
def test_cells_go_together_where_the_rows_and_their_arrays_fit(limit: str, least: int) -> None:
    """One cell at a time keeps one core at work; the plan kept room for rows that there were not."""
    n, d, m = 200_000, 1024, 100
    rows: Any = Rows(n, d, m)
    cluster = ClusterConfig(workers=1, threads_per_worker=2, memory_limit=limit)
    found, together = SharedMemory(rows, cluster, 1, 15).budgets()
    assert together >= least
    assert found.cache_bytes == rows.nbytes
    assert found.worker_bytes is not None
    assert found.dual_bytes is not None
    assert most_open(found.dual_bytes, n, d, m, 2) >= together
    assert WORKER_BYTES + found.cache_bytes + found.dual_bytes <= FILLED * found.worker_bytes
