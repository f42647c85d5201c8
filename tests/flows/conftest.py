"""One Prefect server for all tests that need one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows import environment
from pipeline.config import ClusterConfig, TrainConfig
from storage.stores import open_store
from tests.pipeline.small_data import make_features, make_split, write_dataset

IN_PROCESS = ClusterConfig(workers=0)


@pytest.fixture(scope="session")
def prefect_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Prefect keeps its files instead of in the home of whoever runs the tests."""
    return tmp_path_factory.mktemp("prefect")


@pytest.fixture(scope="session")
def prefect_server(prefect_home: Path) -> Iterator[str]:
    """URL of the API of a server with a database of its own; it starts in 5 to 60 seconds."""
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, PREFECT_LOCAL_STORAGE_PATH, temporary_settings
    from prefect.testing.utilities import prefect_test_harness

    places = {PREFECT_HOME: prefect_home, PREFECT_LOCAL_STORAGE_PATH: prefect_home / "storage"}
    with temporary_settings(places), prefect_test_harness(server_startup_timeout=180):
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
    return TrainConfig(store=store, tol=1e-2)
