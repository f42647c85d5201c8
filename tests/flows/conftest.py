"""One Prefect server for all tests that need one."""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.small_data import make_features, make_split, write_dataset
from topline.flows import environment
from topline.pipeline.options import ClusterConfig, TrainConfig
from topline.storage.stores import open_store

IN_PROCESS = ClusterConfig(workers=0)


# Prefect reads its settings when it is imported: the home and the server of whoever runs the tests must be
# out of its sight before a test module does that.
_home = tempfile.TemporaryDirectory(prefix="topline-prefect-")
atexit.register(_home.cleanup)
os.environ["PREFECT_HOME"] = _home.name
os.environ.pop("PREFECT_API_URL", None)


@pytest.fixture(scope="session")
def prefect_home() -> Path:
    """Where Prefect keeps its files in the tests."""
    return Path(_home.name)


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[str]:
    """URL of the API of a server with a database of its own; it starts in 5 to 60 seconds."""
    from prefect.settings import PREFECT_API_URL
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=180):
        url = PREFECT_API_URL.value()
        assert url is not None
        yield url


@pytest.fixture
def _command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `run_flow` sets in the environment is taken back after the test."""
    for name, value in environment.COMMAND_LINE.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with a dataset of 400 rows in six classes."""
    url = str(tmp_path / "store")
    X, labels = make_features(400, 16, 6)
    write_dataset(open_store(url, create=True), X, labels, make_split(400))
    return url


@pytest.fixture
def training(store: str) -> TrainConfig:
    """A training run that takes a fraction of a second."""
    return TrainConfig(store=store, loss="topk_hinge", tol=1e-2)
