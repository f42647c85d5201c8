"""The benchmark of an old store on a small one: every page is looked at, and its size said."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.scale.overview_scale import look, old_store


def test_pages_of_an_old_store(tmp_path: Path) -> None:
    store = old_store(tmp_path / "store", runs=12, models=6, rounds=50)
    for page in ("overview", "run"):
        found = look(store, page)
        assert found.size > 10_000
        assert found.cold > 0
        assert page in str(found)
