"""Existing features, from the usual file formats, to a stored dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.ingest_config import ImportConfig
from pipeline.progress import Progress
from storage.dataset_info import DatasetInfo


@dataclass(frozen=True)
class ImportResult:
    """The dataset; `reused` says that it was stored already."""

    dataset: str
    store: str
    n: int
    d: int
    m: int
    layout: str
    counts: dict[str, int]
    reused: bool
    seconds: float
    info: DatasetInfo

    def to_dict(self) -> dict[str, Any]:
        """Give the object that `topline import --json` prints."""
        raise NotImplementedError


def import_features(config: ImportConfig, progress: Progress | None = None) -> ImportResult:
    """Store the features that `config` names as a dataset of `config.store`, block by block.

    The same files with the same options give the dataset that is there already.  Raises `InputError` naming
    file, rows and mend for features that are not finite, labels that are missing or out of range, and
    lengths that do not match.
    """
    raise NotImplementedError
