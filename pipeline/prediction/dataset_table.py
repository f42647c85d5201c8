"""Stored predictions of a dataset as rows of a table, unit by unit, and how large their sets are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from topline.pipeline.prediction.answers import AnswerRule, ordered_members
from topline.pipeline.prediction.table import table_schema
from topline.storage.cache import StoredPredictions
from topline.storage.datasets import Dataset
from topline.storage.schema import SPLITS


def dataset_tables(found: StoredPredictions, dataset: Dataset) -> Iterator[pa.Table]:
    """Yield the predictions of all rows in their order, with sample id, label and split.

    A rejected row has no label and no lists, and one of several labels without any above the threshold has
    empty lists.
    """
    names = np.array([*found.facts["class_names"], None], dtype=object)
    ids, labels = dataset.sample_ids(), dataset.labels()
    words = np.array([*_label_names(dataset), None], dtype=object)
    splits = np.array(sorted(SPLITS, key=lambda name: SPLITS[name]), dtype=object)[dataset.split()]
    for unit in range(dataset.plan.units):
        span = dataset.plan.bounds(unit)
        rows = slice(span.start, span.stop)
        classes = found.classes.rows(span.start, span.stop)
        scores = found.scores.rows(span.start, span.stop)
        known = labels[rows] >= 0
        columns = {
            "sample_id": ids[rows],
            "label": words[labels[rows]].tolist(),
            "split": splits[rows].tolist(),
            "classes": _predicted(names[classes], classes, known),
            "scores": _predicted(scores, classes, known),
            "probabilities": [None] * span.rows,
        }
        if found.probabilities is not None:
            probabilities = found.probabilities.rows(span.start, span.stop)
            columns["probabilities"] = _predicted(probabilities, classes, known)
        if found.sets is not None:
            m = len(found.facts["class_names"])
            bits = np.unpackbits(found.sets.rows(span.start, span.stop), axis=1, count=m).astype(bool)
            columns["set"] = [
                names[ordered_members(members, best)].tolist() if there else None
                for members, best, there in zip(bits, classes, known.tolist(), strict=True)
            ]
        yield pa.table(columns, schema=table_schema("sample_id", sets=found.sets is not None))


def set_sizes(found: StoredPredictions, dataset: Dataset, rule: AnswerRule) -> dict[str, Any] | None:
    """Return what sets were made, their mean size, and how many are empty; rejected rows have none."""
    if found.sets is None or rule.sets is None:
        return None
    known = dataset.labels() >= 0
    sizes = np.concatenate(
        [
            np.bitwise_count(found.sets.rows(span.start, span.stop)).sum(axis=1)
            for span in map(dataset.plan.bounds, range(dataset.plan.units))
        ]
    )[known]
    facts = {name: value for name, value in rule.sets.facts().items() if name != "thresholds"}
    return {
        **facts,
        "mean_size": float(sizes.mean()) if len(sizes) else 0.0,
        "empty": int(np.count_nonzero(sizes == 0)),
    }


def _label_names(dataset: Dataset) -> Sequence[str]:
    """Return the text of every label: a class, or the classes of a label set with semicolons between."""
    sets = dataset.label_sets()
    names = dataset.info.class_names
    if sets is None:
        return names
    return [";".join(names[code] for code in classes.tolist()) for classes in sets]


def _predicted(values: NDArray[Any], classes: NDArray[Any], known: NDArray[np.bool_]) -> list[Any]:
    """Values of the classes that are predicted; None for a row that was rejected."""
    return [
        row[kept].tolist() if there else None
        for row, kept, there in zip(values, classes >= 0, known.tolist(), strict=True)
    ]
