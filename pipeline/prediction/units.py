"""What a process does with the units of a dataset that it is given: predict them, and write that.

A model is opened once in each process.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.prediction.answers import AnswerRule, Answers
from topline.pipeline.rows import StoredModel
from topline.storage.cache import PredictionsDraft
from topline.storage.datasets import Dataset
from topline.storage.stores import FileEntry

# Scores of so many bytes are computed at once.
SCORE_BYTES = 1 << 26


@dataclass(frozen=True, eq=False)
class BatchTask:
    """Model, dataset, draft and rule: all that a worker needs."""

    model_url: str
    dataset: Dataset
    draft: PredictionsDraft
    rule: AnswerRule
    kernel: bool = False


def predict_units(task: BatchTask, units: Sequence[int]) -> list[FileEntry]:
    """Predict and write some units, on a worker; return the files."""
    stored = _opened(task.model_url)
    labels, m = task.dataset.labels(), stored.model.record.m
    ids = task.dataset.sample_ids() if task.rule.sets is not None else []
    entries: list[FileEntry] = []
    for unit in units:
        span = task.draft.plan.bounds(unit)
        rows: Any = task.dataset.rows(span.start, span.stop)
        arrays = {
            name: np.empty((span.rows, *spec.row_shape), spec.dtype)
            for name, spec in task.draft.specs.items()
        }
        step = max(1, SCORE_BYTES // (8 * m))
        for low in range(0, span.rows, step):
            scores = stored.scores(stored.transforms.apply(rows[low : low + step]))
            part = slice(span.start + low, span.start + low + len(scores))
            for name, values in _stored_arrays(task.rule.answer(scores, ids[part])).items():
                arrays[name][low : low + step] = values
        # A rejected row has zeros for features, which mean nothing.
        rejected = labels[span.start : span.stop] < 0
        for name, values in arrays.items():
            values[rejected] = {"classes": -1, "sets": 0}.get(name, np.nan)
        entries += task.draft.write_unit(unit, arrays)
    return entries


def _stored_arrays(answers: Answers) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {"classes": answers.classes, "scores": answers.scores}
    if answers.probabilities is not None:
        found["probabilities"] = answers.probabilities
    if answers.sets is not None:
        found["sets"] = np.packbits(answers.sets, axis=1)
    return found


_lock = threading.Lock()
_held: StoredModel | None = None


def _opened(model_url: str) -> StoredModel:
    """Return the model, opened once in each process; the last one makes room."""
    global _held
    with _lock:
        if _held is None or _held.model.url != model_url:
            _held = None
            _held = StoredModel.open(model_url)
        return _held


def forget_model() -> None:
    """Drop the model that this process holds."""
    global _held
    with _lock:
        _held = None
