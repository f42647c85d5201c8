"""Pages of models, of two models and of two runs side by side."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pipeline.dashboard.test_dashboard import answer, shown
from tests.pipeline.dashboards import NASTY, hand_made_store
from tests.pipeline.small_data import small_dataset
from topline.pipeline.dashboard import write_page
from topline.pipeline.dashboard.pages import TALL, versions_chart
from topline.pipeline.evaluation import METRICS
from topline.pipeline.evaluation.measurement import evaluate
from topline.pipeline.evaluation.metrics import top_k_accuracy
from topline.pipeline.options import ClusterConfig, TrainConfig
from topline.pipeline.registry import measure
from topline.pipeline.training import train
from topline.storage.errors import NotFoundError
from topline.storage.stores import Store, open_store


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return hand_made_store(tmp_path_factory.mktemp("models") / "store")


def test_a_model_has_a_page(full: Store) -> None:
    page = answer(full, "/models/m0003")
    assert page.status_code == 200
    said = shown(page.text)
    assert "top-3 fell by 8.0%" in said
    assert "topline export" in said
    assert 'href="../runs/r0003"' in page.text
    assert 'href="../models/m0003/compare/m0001"' in page.text
    assert "Not written yet" in said
    assert answer(full, "/models/m0003/report").status_code == 404
    assert NASTY not in page.text


def test_a_report_is_served_where_it_can_reach_nothing(tmp_path: Path) -> None:
    store = hand_made_store(tmp_path / "store")
    store.write_bytes("reports/m0001.html", b"<p>the report</p>")
    page = answer(store, "/models/m0001/report")
    assert page.content == b"<p>the report</p>"
    policy = page.headers["Content-Security-Policy"]
    assert policy.startswith("sandbox ")
    assert "allow-same-origin" not in policy
    assert 'href="../models/m0001/report"' in answer(store, "/models/m0001").text


def test_two_models_are_compared_as_recorded_where_their_rows_are_gone(full: Store) -> None:
    said = shown(answer(full, "/models/m0002/compare/m0001").text)
    assert "which is not in" in said
    assert "88.00%" in said
    assert "85.00%" in said
    assert answer(full, "/models/m0002/compare/m0099").status_code == 404


def test_two_models_are_compared_on_the_same_rows(tmp_path: Path) -> None:
    small_dataset(tmp_path / "store", n=300, m=4)
    here, urls = ClusterConfig(workers=0), []
    for C in (0.001, 1.0):
        urls.append(train(TrainConfig(store=str(tmp_path / "store"), k=2, C=C, tol=0.01), here).model)
        evaluate(urls[-1])
    store = open_store(tmp_path / "store")
    page = answer(store, "/models/m0002/compare/m0001").text
    evidence = measure(urls[1], urls[0], drift=False)
    for pair in evidence.compared:
        assert f"{pair.gain:+.2%}" in page
        assert f"{pair.p_value:.2g}" in page
    assert "<td>C</td>" in page
    assert "<svg" in page


def test_a_comparison_says_which_model_was_not_evaluated(tmp_path: Path) -> None:
    small_dataset(tmp_path / "store", n=300, m=4)
    config = TrainConfig(store=str(tmp_path / "store"), k=2, tol=0.01)
    evaluate(train(config, ClusterConfig(workers=0)).model)
    train(config, ClusterConfig(workers=0))
    said = shown(answer(open_store(tmp_path / "store"), "/models/m0002/compare/m0001").text)
    assert re.search(r"measured on\s+not evaluated yet\s+\d+ test rows of d0001", said)
    assert "Not evaluated yet: m0002." in said


def test_two_runs_are_compared(full: Store) -> None:
    page = answer(full, "/runs/r0001/compare/r0002").text
    assert page.count("<svg") == 3
    assert "Every setting is the same." in page
    assert 'href="../runs/r0001/compare/r0002"' in answer(full, "/runs/r0001").text
    assert answer(full, "/runs/r0001/compare/r9999").status_code == 404


def test_a_small_difference_does_not_look_like_a_cliff() -> None:
    metric = METRICS["top-1"]
    lines = [
        {
            "id": f"m{i}",
            "stage": "",
            "reigned": False,
            "dataset": "d",
            "metrics": {"top-1": 0.901 + 0.001 * i},
        }
        for i in range(3)
    ]
    drawn = str(versions_chart(lines, [metric]))
    heights = [float(y) for y in re.findall(r'class="dot" cx="[\d.]+" cy="([\d.]+)"', drawn)]
    assert max(heights) - min(heights) < 0.05 * TALL


def test_every_metric_has_a_line_and_its_name_however_many_there_are() -> None:
    metrics = [top_k_accuracy(k) for k in range(1, 13)]
    shares = {metric.name: 0.5 for metric in metrics}
    model = {"id": "m0001", "stage": "", "reigned": False, "dataset": "d", "metrics": shares}
    drawn = str(versions_chart([model], metrics))
    keys = re.findall(r'class="key s(\d+)"><i></i>([^<]*)<', drawn)
    assert keys == [(str(number), metric.column) for number, metric in enumerate(metrics, start=1)]
    assert re.findall(r'<g class="s(\d+)">', drawn) == [number for number, _ in keys]


def test_a_model_is_written_to_a_file_that_leads_nowhere(full: Store, tmp_path: Path) -> None:
    page = Path(write_page(full.url, "m0003", tmp_path / "m.html")).read_text(encoding="utf-8")
    assert not re.search(r"href=\"(?!#|data:)", page)
    with pytest.raises(NotFoundError, match="m0099"):
        write_page(full.url, "m0099", tmp_path / "m.html")
