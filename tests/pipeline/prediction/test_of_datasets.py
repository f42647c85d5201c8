"""A model over a stored dataset: what is written is what the model says, whoever wrote it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.pipeline.small_data import make_features, make_split, small_dataset, write_dataset
from tests.storage.test_integrity import flip_first
from topline.pipeline.cluster import WorkerCalls, WorkersLost, open_cluster
from topline.pipeline.errors import ClusterError, ConfigError, InputError
from topline.pipeline.options.ingest import PredictConfig
from topline.pipeline.options.train import ClusterConfig, TrainConfig
from topline.pipeline.prediction import of_datasets as batch_prediction
from topline.pipeline.prediction import predict_dataset
from topline.pipeline.rows.stored_model import StoredModel
from topline.pipeline.training import train
from topline.storage.cache import StoredPredictions
from topline.storage.datasets import Dataset
from topline.storage.schema import SPLITS
from topline.storage.stores import open_store
from topline.storage.stores.local import LocalStore
from topline.storage.verification import verify_store

HERE = ClusterConfig(workers=0)
REJECTED = [0, 65, 699]
WORDS = list(SPLITS)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("predicted") / "store"
    small_dataset(folder)
    url = train(TrainConfig(store=str(folder), k=2, tol=0.05, transforms=("standardize", "bias")), HERE).model
    X, labels = make_features(700, 12, 5, seed=1)
    split = make_split(700)
    labels[REJECTED], split[REJECTED] = -1, 3
    write_dataset(open_store(folder), X, labels, split, key="new", m=5)
    return url


def best_classes(model: str, k: int) -> tuple[Any, Any]:
    stored = StoredModel.open(model)
    X = np.asarray(Dataset.open(stored.model.store).rows(0, 700), dtype=np.float64)
    mean, scale = (stored.model.array(f"transform.0.{name}") for name in ("mean", "scale"))
    scores = ((X - mean) * scale) @ stored.W[:-1] + stored.W[-1]
    best = np.argsort(-scores, axis=1)[:, :k]
    return best, np.take_along_axis(scores, best, axis=1)


def check(model: str, url: str, k: int) -> None:
    store = StoredModel.open(model).model.store
    found = StoredPredictions.load(store, url.rpartition("/")[2])
    best, scores = best_classes(model, k)
    best[REJECTED], scores[REJECTED] = -1, np.nan
    assert np.array_equal(found.classes.whole(), best)
    np.testing.assert_allclose(found.scores.whole(), scores, rtol=1e-5, atol=1e-5)


def test_every_row_gets_its_best_classes_once(model: str, tmp_path: Path) -> None:
    config = PredictConfig(dataset="latest", top_k=3, output=tmp_path / "deep" / "rows.parquet")
    first = predict_dataset(model, config, HERE)
    assert (first.rows, first.unclassified, first.reused) == (700, 3, False)
    check(model, first.predictions, 3)
    rows = pq.read_table(tmp_path / "deep" / "rows.parquet").to_pylist()
    assert [row["sample_id"] for row in rows] == [f"row{i:06d}" for i in range(700)]
    assert [place for place, row in enumerate(rows) if row["classes"] is None] == REJECTED
    assert rows[1]["classes"] == [f"class {code}" for code in best_classes(model, 3)[0][1]]
    labels, splits = make_features(700, 12, 5, seed=1)[1], make_split(700)
    assert [row["label"] for row in rows[1:10]] == [f"class {code}" for code in labels[1:10]]
    assert [row["split"] for row in rows[1:10]] == [WORDS[code] for code in splits[1:10]]
    assert (rows[0]["label"], rows[0]["split"], rows[0]["scores"]) == (None, "rejected", None)
    again = predict_dataset(model, config, HERE)
    assert (again.reused, again.predictions) == (True, first.predictions)
    store = open_store(model.rpartition("/models/")[0])
    assert verify_store(store) == []
    folder = StoredPredictions.load(store, first.predictions.rpartition("/")[2]).folder
    flip_first(store, f"{folder}/classes/c/3/0")
    assert [(finding.path, finding.rows) for finding in verify_store(store)] == [
        (f"{folder}/classes/c/3/0", (192, 256))
    ]
    store.delete_tree("predictions")


@pytest.mark.cluster
def test_what_is_lost_with_a_worker_is_dealt_anew(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine, dealt = WorkerCalls.run, []

    def losing(self: WorkerCalls, calls: Any, **options: Any) -> Any:
        answers = genuine(self, calls, **options)
        work = {call.worker: call.arguments[1] for call in calls if call.arguments}
        dealt.append(work)
        if work and len(dealt) % 2 == 0:
            raise WorkersLost([calls[0].worker], "is gone")
        return answers

    def never(self: WorkerCalls, calls: Any, **options: Any) -> Any:
        raise WorkersLost([calls[0].worker], "is gone")

    monkeypatch.setattr(WorkerCalls, "run", losing)
    monkeypatch.setattr(batch_prediction, "CALL_BYTES", 2 * 64 * 12 * 4)
    monkeypatch.setattr(batch_prediction, "LOSSES", 1)
    with open_cluster(ClusterConfig(workers=2, dashboard=False), data_bytes=0) as client:
        found = predict_dataset(model, PredictConfig(dataset="latest", top_k=2), client=client)
        monkeypatch.setattr(WorkerCalls, "run", never)
        with pytest.raises(ClusterError, match="2 times in a row"):
            predict_dataset(model, PredictConfig(dataset="latest", top_k=1), client=client)
    check(model, found.predictions, 2)
    assert [sorted(itertools.chain(*work.values())) for work in dealt[:5]] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [4, 5, 6, 7], [8, 9], [8, 9],
    ]  # fmt: skip
    assert len(dealt[0]) == 2
    store = open_store(model.rpartition("/models/")[0])
    assert len(store.list("predictions")) == 2


@pytest.mark.cluster
def test_workers_score_by_the_support_of_a_kernel_model_what_one_process_does(tmp_path: Path) -> None:
    small_dataset(tmp_path, n=300)
    choice = TrainConfig(store=str(tmp_path), loss="max_hinge", kernel="rbf", C=0.1, transforms=(), blocks=3)
    url = train(choice, HERE).model
    stored = StoredModel.open(url)
    support = np.flatnonzero(stored.model.duals(0, stored.model.record.n).any(axis=1))
    np.testing.assert_array_equal(stored.expansion.support, support)
    assert len(stored.expansion.rows) == len(support)
    here = predict_dataset(url, PredictConfig(dataset="latest", top_k=3), HERE)
    kept = StoredPredictions.load(stored.model.store, here.predictions.rpartition("/")[2]).scores.whole()
    stored.model.store.delete_tree("predictions")
    with open_cluster(ClusterConfig(workers=2, dashboard=False), data_bytes=0) as client:
        there = predict_dataset(url, PredictConfig(dataset="latest", top_k=3), client=client)
    found = StoredPredictions.load(stored.model.store, there.predictions.rpartition("/")[2]).scores.whole()
    np.testing.assert_array_equal(found, kept)


def test_what_does_not_fit_is_refused(model: str, tmp_path: Path) -> None:
    other = small_dataset(tmp_path / "other", n=50, d=7)
    with pytest.raises(InputError, match="has 7 features per row, and model m0001 takes 12"):
        predict_dataset(model, PredictConfig(dataset="latest", store=str(tmp_path / "other")), HERE)
    with pytest.raises(ConfigError, match="top-k 6 is more than the model's 5"):
        predict_dataset(model, PredictConfig(dataset="latest", top_k=6), HERE)
    assert other.store.list("predictions") == []


def test_few_rows_are_scored_here_unless_somebody_chooses_workers(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked(Exception):
        pass

    def ask(*_: Any, **__: Any) -> None:
        raise Asked

    monkeypatch.setattr("topline.pipeline.cluster.given_or_own_client", ask)
    asked = PredictConfig(dataset="latest", top_k=5)
    assert predict_dataset(model, asked).rows > 0
    monkeypatch.setattr(batch_prediction, "HERE_BYTES", 0)
    with pytest.raises(Asked):
        predict_dataset(model, PredictConfig(dataset="latest", top_k=4))
    monkeypatch.undo()
    monkeypatch.setattr("topline.pipeline.cluster.given_or_own_client", ask)
    with pytest.raises(Asked):
        predict_dataset(model, PredictConfig(dataset="latest", top_k=4), ClusterConfig(workers=2))


def test_a_store_that_is_only_read_gives_a_table_and_keeps_nothing(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(model.rpartition("/models/")[0])
    store.delete_tree("predictions")
    monkeypatch.setattr(LocalStore, "is_writable", lambda self: False)
    config = PredictConfig(dataset="latest", top_k=3, output=tmp_path / "rows.parquet")
    found = predict_dataset(model, config, ClusterConfig(workers=2))
    assert (found.predictions, found.reused, found.rows) == (None, False, 700)
    assert "is read-only" in caplog.text
    assert store.list("predictions") == []
    rows = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    best = best_classes(model, 3)[0]
    assert [row["classes"] for row in rows[1:65]] == [
        [f"class {code}" for code in best[i]] for i in range(1, 65)
    ]
