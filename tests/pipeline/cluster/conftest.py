"""Worker processes, which take some seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from distributed import Client

from topline.pipeline.cluster import open_cluster
from topline.pipeline.options.train import ClusterConfig


@pytest.fixture(scope="package")
def processes() -> Iterator[Client]:
    """Two workers that are processes of their own, for all tests of this folder that do them no harm."""
    with open_cluster(ClusterConfig(workers=2, dashboard=False)) as client:
        assert client is not None
        client.wait_for_workers(2, timeout=60)
        yield client
