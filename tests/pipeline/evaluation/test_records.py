"""Evaluations read from disk: nothing is lost, and what a later version wrote besides is ignored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from topline.pipeline.evaluation import Evaluation, MultilabelEvaluation, measured
from topline.pipeline.evaluation.records import LabelQuality, Threshold, Tuned
from topline.solvers.estimators.multilabel_metrics import PARTITION_METRICS
from topline.storage.errors import FormatError

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
