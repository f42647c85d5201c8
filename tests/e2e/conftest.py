"""What takes a database, a server and a cluster is left out where nobody asked for it."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "deployment" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("deployment")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
