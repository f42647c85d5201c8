"""What the records of rounds say of workers elsewhere."""

from __future__ import annotations

from pathlib import Path

from tests.pipeline.small_data import small_dataset
from topline import TopKHinge, solve
from topline.pipeline.cluster import DaskExecutor, MemoryPlan, open_cluster
from topline.pipeline.options.train import ClusterConfig
from topline.pipeline.rows.partition import TrainingRows

D, M = 10, 5


def test_rounds_say_what_workers_did_and_what_was_moved(tmp_path: Path) -> None:
    rows = TrainingRows(small_dataset(tmp_path, n=500, d=D, m=M))
    with open_cluster(ClusterConfig(workers=2), data_bytes=0) as client:
        assert client is not None
        with DaskExecutor(client, blocks=4, memory=MemoryPlan(None, 0, None)) as executor:
            options = {"lam": 0.01, "method": "fw", "tol": 1e-12, "max_passes": 5, "m": M}
            result = solve(rows, rows.labels(), TopKHinge(2), executor=executor, **options)
    matrix = 8 * D * M
    for record in result.history:
        assert record.workers == len(record.activity) == 2
        assert sum(worker.rows for worker in record.activity) == len(rows)
        assert all(worker.seconds_busy > 0.0 for worker in record.activity)
        # W goes to each worker and a sum of products comes back; nothing of the size of the rows does.
        assert 2 * matrix <= record.bytes_sent < 4 * matrix
        assert 2 * matrix <= record.bytes_received < 4 * matrix
        # Workers that are threads of this process have no memory of their own.
        assert [worker.memory_bytes for worker in record.activity] == [0, 0]
        assert 10 << 20 < record.memory_bytes < 100 << 30
    reads = [record.bytes_read for record in result.history]
    assert all(read >= 4 * D * len(rows) for read in reads), "nothing is kept in memory"
    assert max(reads) < 3 * 4 * D * 500
