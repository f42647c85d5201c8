"""The stand-ins of the public data sets, written once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reproduce.stand_ins import write_all


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_all(tmp_path_factory.mktemp("public"))
