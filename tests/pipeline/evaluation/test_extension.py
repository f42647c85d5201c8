"""A metric in one file: what stands here is all that a new one needs, and every display has it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pipeline.small_data import small_dataset
from topline.flows.definitions import evaluation_summary
from topline.pipeline.cli import main
from topline.pipeline.dashboard.pages import overview_parts
from topline.pipeline.dashboard.store_follower import StoreFollower
from topline.pipeline.errors import ConfigError
from topline.pipeline.evaluation import METRICS, Evaluation, RowMetric, register_metric
from topline.pipeline.evaluation.measurement import evaluate
from topline.pipeline.options.train import ClusterConfig, TrainConfig
from topline.pipeline.report.document import write_report
from topline.pipeline.rows.stored_model import StoredModel
from topline.pipeline.training import train
from topline.storage.models import read_standing
from topline.storage.stores import open_store

RECIPROCAL_RANK = RowMetric(
    name="mean_reciprocal_rank",
    label="mean reciprocal rank",
    column="MRR",
    row_values=lambda rows: 1.0 / rows.ranks,
)
BALANCED = RowMetric(
    name="balanced_accuracy",
    label="balanced accuracy",
    row_values=lambda rows: rows.ranks == 1,
    class_weights=lambda classes, trained: np.ones(len(classes)),
)
TWO = (RECIPROCAL_RANK, BALANCED)


@pytest.fixture(scope="module", autouse=True)
def both() -> Iterator[None]:
    for metric in TWO:
        register_metric(metric)
    yield
    for metric in TWO:
        del METRICS[metric.name]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A hasty model and a good one."""
    folder = str(tmp_path_factory.mktemp("metrics") / "store")
    small_dataset(Path(folder), n=600)
    for C, tol in ((1e-6, 0.5), (1.0, 1e-3)):
        train(TrainConfig(store=folder, k=1, C=C, tol=tol), ClusterConfig(workers=0))
    return folder


@pytest.fixture
def topline(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command; returns its JSON object, or with `text` what a person sees."""

    def run(*words: str, text: bool = False, code: int = 0) -> Any:
        with pytest.raises(SystemExit) as ended:
            main([*words, *([] if text else ["--json"])])
        assert ended.value.code == code
        said = capsys.readouterr().out
        return said if text else json.loads(said)

    return run


def directly(url: str) -> tuple[float, float]:
    """Mean reciprocal rank and balanced accuracy on the test rows, a row at a time."""
    stored = StoredModel.open(url)
    rows = stored.rows("test")
    X, y = np.array(rows[0 : len(rows)]), rows.labels()
    scores = X @ stored.W
    ranks = np.array([1 + np.sum(np.delete(line, c) >= line[c]) for line, c in zip(scores, y, strict=True)])
    return float(np.mean(1 / ranks)), float(np.mean([np.mean(ranks[y == c] == 1) for c in np.unique(y)]))


def test_every_display_has_it(store: str, tmp_path: Path, topline: Callable[..., Any]) -> None:
    url = f"{store}/models/m0002"
    expected = dict(zip(("mean_reciprocal_rank", "balanced_accuracy"), directly(url), strict=True))
    found = topline("evaluate", url)
    assert {name: found["metrics"][name] for name in expected} == pytest.approx(expected, rel=1e-12)
    assert found["metrics"]["macro-top-1"] == found["metrics"]["balanced_accuracy"]
    shown = f"{expected['mean_reciprocal_rank']:.1%}"
    said = topline("evaluate", url, "--worst", "2", text=True)
    assert re.search(rf"mean reciprocal rank +{re.escape(shown)}\n", said)
    assert f"the 2 of {len(found['per_class'])} classes that do worst, as far as" in said

    brief = topline("models", "list", "--store", store)["models"][-1]["metrics"]
    assert brief == {"top-1": found["topk"]["1"], **brief, **found["metrics"]}
    listed = topline("models", "list", "--store", store, text=True)
    assert "MRR" in listed
    assert shown in listed
    assert "evaluation.metrics.mean_reciprocal_rank" in topline("models", "show", url, text=True)

    page = Path(write_report(url, tmp_path / "report.html")).read_text(encoding="utf-8")
    assert page.count("mean reciprocal rank") == 2  # a tile, and a line of the section
    assert page.count(shown) >= 2

    seen = StoreFollower(open_store(store)).overview(0.0)
    assert [metric.column for metric in seen.metrics] == ["top-1", "top-5", "MRR", "balanced accuracy"]
    parts = {name: str(part) for name, part in overview_parts(seen, 0.0, None).items()}
    assert shown in parts["models"]
    assert "MRR" in parts["versions"]

    evaluation = evaluate(url)
    assert isinstance(evaluation, Evaluation)
    assert f"| MRR | {shown} |" in evaluation_summary(evaluation)


def test_models_are_compared_and_promoted_by_it(store: str, topline: Callable[..., Any]) -> None:
    hasty, good = (f"{store}/models/m000{number}" for number in (1, 2))
    found = topline("models", "compare", good, hasty)["evidence"]
    assert [part["k"] for part in found["accuracies"]] == [1, 2, 3]
    compared = {part["metric"]: part for part in found["metrics"]}
    assert {"macro-top-1", "tail-top-1"} <= compared.keys()
    for place, metric in enumerate(TWO):
        values = [directly(url)[place] for url in (good, hasty)]
        part = compared[metric.name]
        assert [part["challenger"], part["champion"]] == pytest.approx(values)
        assert part["gain"] == pytest.approx(values[0] - values[1])
        assert part["low"] < part["gain"] < part["high"]
    assert "MRR" in topline("models", "compare", good, hasty, text=True)

    topline("models", "promote", hasty, "--force", "--reason", "the first")
    by = ("--metric", "mean_reciprocal_rank")
    promoted = topline("models", "promote", good, *by)
    assert promoted["promoted"]
    assert promoted["metric"] == "mean_reciprocal_rank"
    entry = read_standing(open_store(store)).entries[-1]
    assert entry.evidence["metric"] == "mean_reciprocal_rank"
    assert any(reason.startswith("MRR ") for reason in promoted["reasons"])
    champion = StoreFollower(open_store(store)).overview(0.0)
    assert "mean reciprocal rank" in {tile.label for tile in champion.tiles}
    kept = topline("models", "promote", hasty, *by, "--no-need-certificate", code=3)
    assert not kept["promoted"]
    assert any("MRR" in reason and "below" in reason for reason in kept["reasons"])


def test_names_are_unique_and_known(store: str, topline: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="'balanced_accuracy' already"):
        register_metric(BALANCED)
    told = topline("models", "promote", f"{store}/models/m0002", "--metric", "rank_loss", code=2)
    assert "no metric of one label per row named 'rank_loss'; use one of top-1, top-2" in json.dumps(told)
