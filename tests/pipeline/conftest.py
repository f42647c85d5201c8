"""Fixtures of several rooms: a command in this process, and two workers that are threads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Ran:
    """What a command did: its exit code and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The object that it printed."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


def exit_code(*words: object) -> int:
    """Run a command in this process."""
    # Imported here, as few tests run one and its import takes a second.
    from topline.pipeline.cli import main

    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


@dataclass(frozen=True)
class Topline:
    """Commands in this process."""

    capsys: pytest.CaptureFixture[str]

    def __call__(self, *words: object) -> Ran:
        self.capsys.readouterr()
        code = exit_code(*words)
        seen = self.capsys.readouterr()
        return Ran(code, seen.out, seen.err)

    def printed(self, *words: object) -> dict[str, Any]:
        """Return what a command prints as JSON; it must succeed."""
        ran = self(*words, "--json")
        assert ran.code == 0, ran.err
        return ran.json

    def refused(self, *words: object) -> str:
        """Return the sentence of a command that must fail."""
        ran = self(*words)
        assert ran.code
        assert "Traceback" not in ran.err
        return ran.err


@pytest.fixture
def topline(capsys: pytest.CaptureFixture[str]) -> Topline:
    return Topline(capsys)


@pytest.fixture(scope="module")
def threads() -> Iterator[Any]:
    """Two Dask workers in this process."""
    from topline.pipeline.cluster import open_cluster
    from topline.pipeline.options import ClusterConfig

    with open_cluster(ClusterConfig(workers=2), data_bytes=0) as client:
        yield client
