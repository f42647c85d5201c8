"""A published model together with the dataset that it was trained on, and the scores that it gives."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse, vstack

from topline.pipeline.errors import InputError, NotStoredError
from topline.pipeline.progress import Progress
from topline.pipeline.rows.partition import TrainingRows
from topline.pipeline.rows.transforms import Transforms
from topline.solvers.kernels import Kernel, KernelExpansion, is_precomputed, kernel_from_dict
from topline.storage.datasets import Dataset, list_datasets, read_catalog
from topline.storage.errors import AccessError, DiskFullError, IntegrityError, NotFoundError
from topline.storage.models import Model, load_model, update_record
from topline.storage.schema import SPLITS

logger = logging.getLogger(__name__)


#: The array of a model that says which rows it learned, as `learned_rows` gives them.
LEARNED = "learned_rows"
#: The array of a model that says what it learned of them, as `learned_labels` gives it.
LEARNED_LABELS = "learned_labels"
_LEARNED_SPLITS = [SPLITS[name] for name in ("train", "val", "calibration")]


def learned_rows(dataset: Dataset) -> NDArray[np.uint64]:
    """Return digests (r,), ascending, of the rows that a model of a dataset learns: all but its test rows.

    They are the first 64 bits of SHA-256 of each id and each content, so that of 10^7 rows one that a model
    has not learned is taken for one that it has with a probability below 10^-12.
    """
    table = dataset.shared_manifest()
    kept = np.flatnonzero(np.isin(dataset.split(), _LEARNED_SPLITS))
    ids, contents = (table[name].take(pa.array(kept)).to_pylist() for name in ("sample_id", "sha256"))
    return digests_of(ids, contents)


def learned_labels(dataset: Dataset) -> NDArray[np.uint8]:
    """Return SHA-256 (32,) of splits and labels of the rows that a model learns, in their order."""
    splits, labels, sets = dataset.split(), dataset.labels(), dataset.label_sets()
    kept = np.isin(splits, _LEARNED_SPLITS)
    found = hashlib.sha256(splits[kept].astype("u1").tobytes())
    found.update(labels[kept].astype("<i4").tobytes())
    weights = dataset.facts().weights
    parts = [] if sets is None else [sets.indptr.astype("<i8"), sets.indices.astype("<i4")]
    parts += [] if weights is None else [weights[kept].astype("<f8")]
    for part in parts:
        found.update(part.tobytes())
    return np.frombuffer(found.digest(), dtype=np.uint8)


def digests_of(ids: Iterable[str], contents: Iterable[str | None]) -> NDArray[np.uint64]:
    """Return the digests of ids, and of contents by their SHA-256 in hexadecimal, ascending."""
    found = {int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) for name in ids}
    found |= {int(content[:16], 16) for content in contents if content is not None}
    return np.array(sorted(found), dtype=np.uint64)


@dataclass(frozen=True, eq=False)
class StoredModel:
    """A model, its W (d, m) in float64 and its fitted transforms.

    With a `kernel` there is no W, only zeros in its place: the scores are sums over the training rows, which
    are read from the dataset.
    """

    model: Model
    W: NDArray[np.float64]
    transforms: Transforms
    kernel: Kernel | None = None

    @classmethod
    def open(cls, url: str) -> StoredModel:
        """Return the model at `url`; every array's digest is checked."""
        model = load_model(url)
        arrays = {name: model.array(name) for name in model.arrays if name not in (LEARNED, LEARNED_LABELS)}
        transforms = Transforms.from_record(model.record.transforms, arrays)
        record = model.record
        if record.kernel is not None:
            # Of any size that a record may say, it takes no memory.
            none = np.broadcast_to(np.zeros(()), (record.d, record.m))
            return cls(model, none, transforms, kernel_from_dict(record.kernel))
        W = np.asarray(arrays["W"], dtype=np.float64)
        if W.shape != (record.d, record.m):
            raise IntegrityError(
                f"the record of {model.url} has d = {record.d} and m = {record.m}, and its weights are"
                f" {W.shape[0]} x {W.shape[-1]}: restore it from a copy"
            )
        return cls(model, W, transforms)

    @property
    def input_width(self) -> int:
        """Features before the transforms: those that a fitted one takes, or W's without the bias."""
        width = int(self.W.shape[0])
        for step in reversed(self.transforms.steps):
            mean = getattr(step, "mean", None)
            if mean is not None:
                width = len(mean)
            elif hasattr(step, "input_width"):
                width = step.input_width
            elif step.name == "bias":
                width -= 1
            else:
                width //= getattr(step, "copies", 1)
        return width

    def scores(self, X: Any) -> NDArray[np.float64]:
        """Return the scores (r, m) of rows X (r, d) as the transforms leave them."""
        if self.kernel is None:
            return np.asarray(X @ self.W, dtype=np.float64)
        return self.expansion.scores(X)

    def scores_of(
        self, rows: TrainingRows, wanted: NDArray[np.intp], progress: Progress | None
    ) -> NDArray[np.float64]:
        """Return the scores (r, m) of the `wanted` rows (r,), whose numbers ascend; one pass over all."""
        scores = np.empty((len(wanted), self.model.record.m))
        for start, stop, X in rows.tiles(progress):
            first, last = np.searchsorted(wanted, (start, stop))
            if first < last:
                scores[first:last] = self.scores(X[wanted[first:last] - start])
        return scores

    def dataset(self) -> Dataset:
        """Return the dataset it was trained on, or one with the same rows that took its place.

        `InputError` if there is neither, or the dataset is not the same any more.
        """
        record = self.model.record
        try:
            dataset = Dataset.open(self.model.store, record.dataset)
        except NotFoundError as error:
            found = self._in_its_place()
            if found is not None:
                return found
            removal = read_catalog(self.model.store).removed.get(record.dataset)
            why = "is not in" if removal is None else f"was removed ({removal.when}: {removal.reason}) from"
            fix = "restore it, or train again" if removal is None else "train again"
            raise InputError(
                f"model {record.id} was trained on dataset {record.dataset}, which {why}"
                f" {self.model.store.url}: {fix}"
            ) from error
        if dataset.info.digest != record.dataset_digest:
            raise InputError(
                f"model {record.id} was trained on dataset {record.dataset} with digest"
                f" {record.dataset_digest[:12]}, but the store holds {dataset.info.digest[:12]}: train again"
            )
        return dataset

    def _in_its_place(self) -> Dataset | None:
        """Return the newest dataset that has the rows and labels that the model learned, and test rows."""
        record = self.model.record
        if not {LEARNED, LEARNED_LABELS} <= set(self.model.arrays):
            return None
        learned, labels = self.model.array(LEARNED), self.model.array(LEARNED_LABELS)
        for info in reversed(list_datasets(self.model.store)):
            if info.class_names == record.class_names and info.features == record.features:
                dataset = Dataset(self.model.store, info)
                same = np.array_equal(learned_labels(dataset), labels)
                if same and np.array_equal(learned_rows(dataset), learned):
                    return dataset
        return None

    def rows(self, split: str) -> TrainingRows:
        """Return rows of one split of its dataset, transformed as in training.

        `IntegrityError` where the record's transforms do not make of its rows what the weights take.
        """
        dataset = self.dataset()
        if dataset.info.d != self.input_width:
            raise IntegrityError(
                f"the record of {self.model.url} has transforms for {self.input_width} features, and its"
                f" dataset has {dataset.info.d}: restore it from a copy"
            )
        return TrainingRows(dataset, split, self.transforms)

    @cached_property
    def expansion(self) -> KernelExpansion:
        """The training rows with duals, with their coefficients, read once."""
        record = self.model.record
        A = np.asarray(self.model.duals(0, record.n), dtype=np.float64)
        support = np.flatnonzero(A.any(axis=1))
        if self.kernel is None:
            raise InputError(f"model {record.id} has no kernel")
        C = A[support] / (record.lam * record.n)
        held = None if is_precomputed(self.kernel) else self._rows_of(support)
        return KernelExpansion(self.kernel, held, support, C, record.n)

    def _rows_of(self, support: NDArray[np.intp]) -> Any:
        """Return the training rows of these numbers."""
        parts = []
        for start, stop, X in self.rows("train").tiles():
            parts.append(X[support[(start <= support) & (support < stop)] - start])
        return csr_matrix(vstack(parts, format="csr")) if issparse(parts[0]) else np.concatenate(parts)


def record_if_possible(model_url: str, result: Any, **changes: Any) -> None:
    """Add a revision with what was measured; where the store cannot be written, say so and go on.

    `NotStoredError` with the `result` where no room is left: the store was to keep it.
    """
    try:
        update_record(model_url, **changes)
    except AccessError as error:
        logger.warning("this is shown and not recorded: %s", error)
    except DiskFullError as error:
        raise NotStoredError(f"this is not recorded with the model: {error}", result) from error
