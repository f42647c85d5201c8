"""Top-k accuracies: ties against the model, checked against scikit-learn and published scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import top_k_accuracy_score

from tests.pipeline.small_data import make_features, small_dataset, write_dataset
from topline.pipeline.errors import InputError
from topline.pipeline.evaluation import Evaluation, ranks_against_ties, topk_shares
from topline.pipeline.evaluation.measurement import evaluate
from topline.pipeline.options.train import ClusterConfig, TrainConfig
from topline.pipeline.rows.stored_model import StoredModel
from topline.pipeline.training import train
from topline.storage.models import load_model
from topline.storage.stores import open_store


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("evaluated") / "store"
    small_dataset(folder, n=600)
    config = TrainConfig(store=str(folder), k=2, tol=5e-2, method="fw")
    return train(config, ClusterConfig(workers=0)).model


def test_ties_count_against_the_model() -> None:
    scores = np.array([[1.0, 1.0, 0.0], [2.0, 1.0, 1.0], [0.0, 0.0, 0.0], [0.0, np.nan, 1.0]])
    assert ranks_against_ties(scores, np.array([0, 0, 1, 2])).tolist() == [2, 1, 3, 2]


def test_a_model_of_zeros_gets_nothing_right() -> None:
    shares = topk_shares(ranks_against_ties(np.zeros((50, 5)), np.zeros(50, dtype=int)), [1, 4, 5])
    assert shares == {1: 0.0, 4: 0.0, 5: 1.0}


def test_it_agrees_with_scikit_learn_where_nothing_is_tied(model: str) -> None:
    evaluation = evaluate(model)
    rows = StoredModel.open(model).rows("test")
    scores = np.array(rows[0 : len(rows)]) @ StoredModel.open(model).W
    assert evaluation.rows == len(rows)
    assert set(evaluation.topk) == {1, 2, 3, 5}
    for k in (1, 2, 3):
        theirs = top_k_accuracy_score(rows.labels(), scores, k=k, labels=np.arange(5))
        assert evaluation.topk[k] == pytest.approx(theirs, abs=1e-12)
    assert evaluation.topk[5] == 1.0


@pytest.mark.data
@pytest.mark.parametrize(("name", "top1"), [("20news_test_set", 0.9234), ("cifar10_test_set", 0.9294)])
def test_published_scores_give_their_published_accuracy(shared_data: Path, name: str, top1: float) -> None:
    folder = shared_data / f"scores_{name}"
    scores = np.load(folder / f"{name}_pyx.npy")
    labels = np.load(folder / f"{name}_original_labels.npy").astype(np.int64)
    shares = topk_shares(ranks_against_ties(scores, labels), [1, 2, 5])
    assert shares[1] == pytest.approx(top1, abs=2e-4)
    for k, share in shares.items():
        theirs = top_k_accuracy_score(labels, scores, k=k, labels=np.arange(scores.shape[1]))
        # A tie can only cost the model here, and only a handful of rows hold one.
        assert theirs - 2e-3 <= share <= theirs + 1e-12


def test_classes_pairs_and_baseline_add_up(model: str) -> None:
    evaluation = evaluate(model, confused=100)
    rows = StoredModel.open(model).rows("test")
    assert sum(part.rows for part in evaluation.per_class) == evaluation.rows
    top1 = sum(part.rows * part.topk[1] for part in evaluation.per_class) / evaluation.rows
    assert top1 == pytest.approx(evaluation.topk[1])
    wrong = round(evaluation.rows * (1 - evaluation.topk[1]))
    assert sum(pair.count for pair in evaluation.confused) == wrong
    assert all(pair.true != pair.predicted for pair in evaluation.confused)
    counts = [pair.count for pair in evaluation.confused]
    assert counts == sorted(counts, reverse=True)
    majority = int(evaluation.majority_class.removeprefix("class "))
    assert evaluation.majority_baseline == pytest.approx(np.mean(rows.labels() == majority))


def test_the_record_holds_it_and_gives_it_back(model: str) -> None:
    evaluation = evaluate(model, "val")
    stored = load_model(model).record.evaluation
    assert stored is not None
    assert Evaluation.from_dict(stored) == evaluation


def test_a_split_without_rows_is_refused(tmp_path: Path) -> None:
    X, labels = make_features(100, 6, 3)
    write_dataset(open_store(tmp_path, create=True), X, labels, np.zeros(100, dtype=np.int8))
    url = train(TrainConfig(store=str(tmp_path), tol=0.2, method="fw"), ClusterConfig(workers=0)).model
    with pytest.raises(InputError, match=r"no test rows to evaluate on .*train 100"):
        evaluate(url)
    with pytest.raises(InputError, match="'rejected'"):
        evaluate(url, "rejected")
