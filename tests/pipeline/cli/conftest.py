"""A small store for the commands of a module."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.small_data import small_dataset


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("cli") / "store"
    small_dataset(folder)
    return str(folder)
