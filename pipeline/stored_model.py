"""A published model together with the dataset that it was trained on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InputError
from pipeline.partition import TrainingRows
from pipeline.transforms import Transforms
from storage.errors import NotFoundError
from storage.features import Dataset
from storage.models import Model, load_model


@dataclass(frozen=True, eq=False)
class StoredModel:
    """A model, its W (d, m) in float64 and its fitted transforms."""

    model: Model
    W: NDArray[np.float64]
    transforms: Transforms

    @classmethod
    def open(cls, url: str) -> StoredModel:
        """Read the model at `url`; every array's digest is checked."""
        model = load_model(url)
        arrays = {name: model.array(name) for name in model.arrays}
        transforms = Transforms.from_record(model.record.transforms, arrays)
        return cls(model, np.asarray(arrays["W"], dtype=np.float64), transforms)

    def dataset(self) -> Dataset:
        """Open the dataset it was trained on; `InputError` if that is gone or is not the same any more."""
        record = self.model.record
        try:
            dataset = Dataset.open(self.model.store, record.dataset)
        except NotFoundError as error:
            raise InputError(
                f"model {record.id} was trained on dataset {record.dataset}, which is not in"
                f" {self.model.store.url} any more: restore it, or train again"
            ) from error
        if dataset.info.digest != record.dataset_digest:
            raise InputError(
                f"model {record.id} was trained on dataset {record.dataset} with digest"
                f" {record.dataset_digest[:12]}, but the store holds {dataset.info.digest[:12]}: train again"
            )
        return dataset

    def rows(self, split: str) -> TrainingRows:
        """Rows of one split of its dataset, transformed as in training."""
        return TrainingRows(self.dataset(), split, self.transforms)
