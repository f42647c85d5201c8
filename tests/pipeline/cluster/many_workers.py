"""Many workers in one process, for what goes from worker to worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from distributed import Client

from topline.pipeline.cluster import open_cluster
from topline.pipeline.options.train import ClusterConfig


@contextmanager
def many_workers(count: int) -> Iterator[Client]:
    """Yield a client of so many workers that are threads, once all of them are there."""
    with open_cluster(ClusterConfig(workers=count, dashboard=False), data_bytes=0) as client:
        assert client is not None
        client.wait_for_workers(count, timeout=240)
        yield client
