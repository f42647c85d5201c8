"""Published models: a sealed record, its revisions, and named arrays that are written once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from storage.stores import Store

STAGES = ("candidate", "champion", "archived")

RowBlocks = Iterable[tuple[int, int, NDArray[Any]]]
"""(start, stop, rows): consecutive runs of rows, ascending from 0, without gaps."""


@dataclass(frozen=True)
class ModelRecord:
    """All that is known of a model besides its arrays.

    `id` and `created` are given by `save_model`, `revision` counts from 1 and grows with every
    `update_record`.  `loss` is the loss's own dictionary, `features` the features' specification (so that
    new images become the same features), `transforms` those fitted on the training split.
    """

    dataset: str
    dataset_digest: str
    config: Mapping[str, Any]
    loss: Mapping[str, Any]
    lam: float
    C: float
    smoothing: float
    method: str
    n: int
    d: int
    m: int
    class_names: tuple[str, ...]
    features: Mapping[str, Any]
    transforms: tuple[Mapping[str, Any], ...] = ()
    result: Mapping[str, Any] = field(default_factory=dict)
    certificate: Mapping[str, Any] | None = None
    evaluation: Mapping[str, Any] | None = None
    run: str | None = None
    code_version: str = ""
    stage: str = "candidate"
    id: str = ""
    created: str = ""
    revision: int = 0

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON object."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ModelRecord:
        """The record from its JSON object; `FormatError` if it is none."""
        raise NotImplementedError


class Model:
    """A published model, opened for reading; pickles by its URL."""

    record: ModelRecord
    url: str
    store: Store

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of its arrays, without the duals."""
        raise NotImplementedError

    def array(self, name: str) -> NDArray[Any]:
        """The array `name` with its digest checked; `NotFoundError` if the model has none of that name."""
        raise NotImplementedError

    @property
    def has_duals(self) -> bool:
        """Whether the dual variables were stored with it."""
        raise NotImplementedError

    def duals(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start..stop-1 of the dual matrix A (n x m); `NotFoundError` if none was stored."""
        raise NotImplementedError


def save_model(
    store: Store, record: ModelRecord, arrays: Mapping[str, NDArray[Any]], duals: RowBlocks | None = None
) -> str:
    """Publish a model and return its URL, <store>/models/m0001; nobody sees it before all of it is stored.

    `duals` are runs of rows (start, stop, A[start:stop]) in row order, streamed.
    """
    raise NotImplementedError


def load_model(url: str) -> Model:
    """The model at `url`; `NotFoundError`, or `IncompleteError` if its writer never finished."""
    raise NotImplementedError


def update_record(url: str, **changes: Any) -> ModelRecord:
    """Add a revision of the model's record with some fields changed: certificate, evaluation, result, stage.

    Racing updates are all kept, each made on top of the one before it.  `FormatError` for other fields.
    """
    raise NotImplementedError


def list_models(store: Store) -> list[ModelRecord]:
    """Newest revision of every published model, by id."""
    raise NotImplementedError


def model_history(url: str) -> list[ModelRecord]:
    """All revisions of a model's record, oldest first."""
    raise NotImplementedError
