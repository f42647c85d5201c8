"""Top-k accuracies: ties against the model, checked against scikit-learn, and read back from disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import top_k_accuracy_score

from tests.pipeline.small_data import make_features, small_dataset, write_dataset
from topline.pipeline.errors import InputError
from topline.pipeline.evaluation import (
    Evaluation,
    MultilabelEvaluation,
    measured,
    ranks_against_ties,
    topk_shares,
)
from topline.pipeline.evaluation.measurement import evaluate
from topline.pipeline.evaluation.records import LabelQuality, Threshold, Tuned
from topline.pipeline.options.train import ClusterConfig, TrainConfig
from topline.pipeline.rows.stored_model import StoredModel
from topline.pipeline.training import train
from topline.solvers.estimators.multilabel_metrics import PARTITION_METRICS
from topline.storage.errors import FormatError
from topline.storage.models import load_model
from topline.storage.schema import SPLITS
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
    new = "new data with --images or --features$"
    with pytest.raises(InputError, match=rf"no test rows to evaluate on \(it has train 100\): measure {new}"):
        evaluate(url)
    split = np.zeros(100, dtype=np.int8)
    split[:9] = SPLITS["val"]
    write_dataset(open_store(tmp_path / "val", create=True), X, labels, split)
    url = train(
        TrainConfig(store=str(tmp_path / "val"), tol=0.2, method="fw"), ClusterConfig(workers=0)
    ).model
    said = rf"train 91, val 9\): measure the validation rows with --split val, or {new}"
    with pytest.raises(InputError, match=said):
        evaluate(url)
    with pytest.raises(InputError, match="'rejected'"):
        evaluate(url, "rejected")


HEAD: dict[str, Any] = {
    "model": "m0001", "dataset": "d0001", "split": "test", "rows": 8, "seconds": 0.5, "created": "2026-01-01",
}  # fmt: skip
SINGLE = {
    **HEAD, "topk": {"1": 0.5, "10": 1.0}, "majority_class": "a", "majority_baseline": 0.25,
    "per_class": [{"name": "a", "rows": 8, "topk": {"1": 0.5}}],
    "confused": [{"true": "a", "predicted": "b", "count": 4}],
}  # fmt: skip
SEVERAL = MultilabelEvaluation(
    **HEAD,
    labels_per_row=1.5,
    predicted_per_row=1.0,
    rank_loss=0.1,
    mean_average_precision=0.9,
    precision={1: 0.9, 3: 0.5},
    recall={1: 0.6, 3: 1.0},
    threshold=Threshold(0.25, "f1_micro", "val", 4),
    metrics=dict.fromkeys(PARTITION_METRICS, 0.75),
    tuned=dict.fromkeys(PARTITION_METRICS, Tuned(0.5, 0.8)),
    per_label=(LabelQuality("a", 4, 1.0, 0.5, 0.75, 0.9),),
)


def later(record: Any) -> Any:
    """The record with a field that this version does not know, in every object of it that has fields."""
    if isinstance(record, list):
        return [later(part) for part in record]
    if not isinstance(record, dict) or all(key.isdecimal() for key in record):
        return record
    return {**{key: later(value) for key, value in record.items()}, "later": {"than": "this version"}}


def test_an_evaluation_without_other_metrics_is_read() -> None:
    found = Evaluation.from_dict(SINGLE)
    assert found.metrics == {}
    assert Evaluation.from_dict(found.to_dict()) == found
    later = {
        "metrics": {}, "probabilities": None, "sets": [], "confusion": [], "sizes": [], "intervals": {}
    }  # fmt: skip
    written = found.to_dict()
    # Four of eight, by Wilson's formula.
    assert written["per_class"][0].pop("intervals")["1"] == pytest.approx([0.215216, 0.784784], abs=1e-6)
    assert written == {**SINGLE, **later}
    assert [(metric.name, value) for metric, value in measured(SINGLE)] == [("top-1", 0.5), ("top-10", 1.0)]


@pytest.mark.parametrize(("share", "baseline", "said"), [(0.5, 0.3, True), (0.9, 0.3, False)])
def test_what_rows_do_not_show_to_be_better_is_said(share: float, baseline: float, said: bool) -> None:
    """Of eight rows four are no proof against three of ten, and seven are."""
    found = replace(Evaluation.from_dict(SINGLE), topk={1: share}, majority_baseline=baseline)
    assert (found.no_better is not None) == said
    if said:
        assert "no better than always answering" in str(found.no_better)


def test_fields_of_a_later_version_are_ignored() -> None:
    assert Evaluation.from_dict(later(SINGLE)) == Evaluation.from_dict(SINGLE)
    record = SEVERAL.to_dict()
    assert MultilabelEvaluation.from_dict(record) == SEVERAL
    record["threshold"] = later(record["threshold"])
    record["tuned"] = {name: later(part) for name, part in record["tuned"].items()}
    record["per_label"] = later(list(record["per_label"]))
    assert MultilabelEvaluation.from_dict({**record, "later": 1}) == SEVERAL


@pytest.mark.parametrize("field", ["split", "topk", "per_class", "confused"])
def test_a_record_that_lacks_a_field_is_refused(field: str) -> None:
    record = {name: value for name, value in SINGLE.items() if name != field}
    with pytest.raises(FormatError, match=f"the evaluation of a model lacks .*{field}"):
        Evaluation.from_dict(record)


@pytest.mark.parametrize("field", ["rank_loss", "precision", "threshold", "tuned", "per_label"])
def test_a_record_of_several_labels_that_lacks_a_field_is_refused(field: str) -> None:
    record = {name: value for name, value in SEVERAL.to_dict().items() if name != field}
    with pytest.raises(FormatError, match=f"the evaluation of a model lacks .*{field}"):
        MultilabelEvaluation.from_dict(record)


def test_metrics_are_written_for_people() -> None:
    names = [name for name, *_ in SEVERAL.table()]
    assert names[0] == "F1, micro-averaged"
    assert SEVERAL.table()[-1][1:] == ("0.7500", "0.8000", "0.5")
    assert SEVERAL.ranking() == {
        "rank loss": "0.1000",
        "mean average precision": "90.0%",
        "precision": "90.0% at 1, 50.0% at 3",
        "recall": "60.0% at 1, 100.0% at 3",
    }
    assert list(SEVERAL.summary()) == ["rank_loss", "mean_average_precision", *PARTITION_METRICS, "threshold"]
