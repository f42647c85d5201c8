"""The page of a sweep that goes on: what it says of answers made by hand, and of a sweep that ran."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.pipeline.dashboard.test_dashboard import answer, shown
from tests.pipeline.small_data import make_features, write_dataset
from topline.pipeline.cli import main
from topline.pipeline.dashboard import write_page
from topline.pipeline.dashboard.models import cells_seen, sweep_parts
from topline.pipeline.options import ClusterConfig, SweepConfig
from topline.pipeline.sweep import sweep
from topline.storage.runs import add_answer, create_sweep, list_sweeps, read_answers, read_sweep
from topline.storage.stores import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store", create=True)


def begun_sweep(store: Store) -> str:
    config = SweepConfig(store=store.url, C=(0.1, 1.0), loss=("topk_hinge", "softmax"), k=(2,), folds=2)
    return create_sweep(store, config.model_dump(mode="json"), "d0001", "0" * 64)


def told(round_, path, fold, *cells):
    return {
        "round": round_, "path": path, "fold": fold,
        "cells": [
            {"C": C, "fold": fold, "rows": 100, "hits": hits, "relative_gap": gap, "passes": passes}
            for C, hits, gap, passes in cells
        ],
    }  # fmt: skip


def test_each_head_has_a_curve_and_a_row_that_grow_with_the_answers(store: Store) -> None:
    name = begun_sweep(store)
    page = answer(store, f"/sweeps/{name}")
    assert page.status_code == 200
    assert "No round has finished yet" in page.text
    add_answer(store, name, 0, told(0, 0, 0, (0.1, 60, 0.1, 4), (1.0, 80, 0.09, 6)))
    add_answer(store, name, 1, told(0, 1, 0, (0.1, 50, None, 4)))
    add_answer(store, name, 2, told(1, 0, 1, (1.0, 90, 0.2, 5)))
    seen = cells_seen(read_sweep(store, name), read_answers(store, name))
    assert list(seen) == ["topk_hinge k=2", "softmax"]
    first, second = seen["topk_hinge k=2"]
    assert (first.C, first.passes, first.accuracy, first.curve) == (0.1, 4, 0.6, [(4, 0.1)])
    # Hits of both folds count, and the larger gap.
    assert (second.passes, second.accuracy, second.curve) == (11, 0.85, [(6, 0.09), (11, 0.2)])
    assert seen["softmax"][0].curve == []
    parts = answer(store, f"/api/sweeps/{name}/parts").json()
    assert parts["again"] == 2
    assert parts["parts"]["charts"].count("<svg") == 4 - 1  # a path whose numbers overflowed has no gaps
    text = re.sub(r"\s+", " ", shown(parts["parts"]["tiles"]))
    assert "best C so far 1 85.0%, topk_hinge k=2" in text
    assert "1 of 2" in shown(parts["parts"]["cells"])


def test_sweeps_are_listed_and_what_is_none_is_not_there(store: Store, tmp_path: Path) -> None:
    assert "The store holds no sweep yet" in answer(store, "/").text
    name = begun_sweep(store)
    assert f'href="sweeps/{name}"' in answer(store, "/").text
    for path in ("/sweeps/s9999", "/sweeps/r0001", "/sweeps/s00x1", "/api/sweeps/s9999/parts"):
        assert answer(store, path).status_code == 404
    page = write_page(store.url, name, tmp_path / "page.html")
    assert "This file is complete in itself" in Path(page).read_text(encoding="utf-8")


def test_a_sweep_that_ran_is_shown_with_its_own_numbers(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    X, y = make_features(120, 6, 3)
    write_dataset(store, X, y, np.zeros(len(y), dtype=np.int8))
    config = SweepConfig(store=store.url, C=(0.1, 1.0), k=(1,), folds=2)
    result = sweep(config, ClusterConfig(workers=0))
    (record,) = list_sweeps(store)
    (cells,) = cells_seen(record, read_answers(store, record.id)).values()
    assert [(cell.C, cell.passes) for cell in cells] == [(one.C, one.passes) for one in result.cells]
    for cell, one in zip(cells, result.cells, strict=True):
        assert cell.accuracy == pytest.approx(one.mean)
        assert cell.gap == one.relative_gap
    assert "Finished" in sweep_parts(record, read_answers(store, record.id))["verdict"]
    out = tmp_path / "page.html"
    with pytest.raises(SystemExit) as ended:
        main(["dashboard", f"{store.url}/sweeps/{record.id}", "--out", str(out)])
    assert ended.value.code in (0, None)
    assert f"Sweep {record.id}" in out.read_text(encoding="utf-8")
    capsys.readouterr()


def test_the_name_in_an_answer_goes_before_its_number(store: Store) -> None:
    """Where the data decides k two losses can become one, and those after it have other numbers."""
    name = begun_sweep(store)
    add_answer(store, name, 0, {**told(0, 0, 0, (0.1, 60, 0.1, 4)), "name": "softmax"})
    assert list(cells_seen(read_sweep(store, name), read_answers(store, name))) == ["softmax"]
