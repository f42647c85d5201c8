"""The benchmark of accuracies runs, and meets its bar on the photographs of scenes where they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.models.photograph_accuracy import main


def test_made_stripes_are_told_apart(capsys) -> None:
    found = main(["--quick"])["stripes"]
    assert set(found) == {"default", "hog", "efficientnet_lite0"}
    assert found["default"] == found["efficientnet_lite0"]
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.slow
@pytest.mark.data
def test_scenes_are_told_apart_as_the_command_comes(shared_data: Path) -> None:
    found = main(["--data", str(shared_data), "--sets", "scenes"])["scenes"]
    assert found["default"] >= 0.9
    assert found["default"] > found["hog"]
