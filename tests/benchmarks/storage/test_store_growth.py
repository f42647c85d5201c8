"""The growth of a store, small."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.storage.store_growth import grow

pytestmark = pytest.mark.benchmarks


def test_versions_of_one_image_each(tmp_path: Path) -> None:
    growth = grow(tmp_path, images=400, versions=4)
    assert growth.versions == 5
    # Each version has records of its own, some 15 kB, which are much beside 400 images.
    assert growth.ratio < 1.2
