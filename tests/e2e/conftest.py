"""A browser; and what takes a database, a server and a cluster is left out where nobody asked for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.e2e.browser import Tab, browsing, find_browser


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    binary = find_browser()
    if binary is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with browsing(binary, tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """Return a folder that other accounts may enter; pytest closes its own to them when a session begins."""
    with TemporaryDirectory(prefix="topline-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "deployment" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("deployment")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
