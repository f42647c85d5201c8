"""What obstore does beside s3fs, with few requests; s3fs alone where obstore is not installed."""

from __future__ import annotations

import os

import pytest

from tests.benchmarks.storage.object_drivers import installed, measure

pytestmark = pytest.mark.benchmarks


def test_the_driver_of_topline_survives_a_fork_and_reads_the_files_of_aws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    found = measure(installed(), puts=3, patience=240.0)["s3fs"]
    assert found.after_fork
    assert found.with_files
    assert found.put > 0.0
