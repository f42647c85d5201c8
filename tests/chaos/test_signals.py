"""A signal at any moment of a command ends it with one sentence, and the exit code that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.signals import Moment, moments, prepare, struck


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("signals") / "prepared")


@pytest.mark.parametrize(
    "moment", tuple(moments(14, seed=0)), ids=lambda moment: f"{moment.command}-{moment.events}"
)
def test_a_command_ends_as_the_guide_says_whenever_it_is_struck(
    moment: Moment, prepared: Path, tmp_path: Path
) -> None:
    ending = struck(moment, prepared, tmp_path / "here")
    assert not ending.fault(moment.number), ending.said
