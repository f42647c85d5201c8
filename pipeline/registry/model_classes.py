"""Models by classes that are not all their own: some of them, or several taken as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topline.pipeline.registry.class_changes import ClassChanges
from topline.pipeline.rows import StoredModel, TrainingRows


@dataclass(frozen=True, eq=False)
class ModelClasses:
    """A model's scores of some classes; the score of a class is the largest of those that it stands for.

    `classes` are names of rows' classes, each with the names of the model's.
    """

    model: StoredModel
    classes: Mapping[str, Sequence[str]]

    def scores(self, X: Any) -> NDArray[np.float64]:
        """Return the scores (r, classes) of transformed rows X."""
        place = {name: code for code, name in enumerate(self.model.model.record.class_names)}
        found = self.model.scores(X)
        columns = [[place[name] for name in names] for names in self.classes.values()]
        if columns == [[code] for code in range(found.shape[1])]:
            return found
        return np.stack([found[:, own].max(axis=1) for own in columns], axis=1)

    def codes(self, rows: TrainingRows) -> NDArray[np.int64]:
        """Return the code of each row's class among `classes`, -1 where it is none of them."""
        place = {name: code for code, name in enumerate(self.classes)}
        codes = np.array([place.get(name, -1) for name in rows.dataset.class_names], dtype=np.int64)
        return codes[rows.labels()]


def common_classes(
    challenger: StoredModel, champion: StoredModel, changes: ClassChanges
) -> list[ModelClasses]:
    """Return both models by the classes that both know."""
    names = champion.model.record.class_names
    return [
        ModelClasses(challenger, {name: (name,) for name in changes.common}),
        ModelClasses(champion, {name: changes.sources(name, names) for name in changes.common}),
    ]
