"""Images to a stored dataset of features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.ingest_config import ExtractConfig
from pipeline.progress import Progress
from pipeline.train_config import ClusterConfig
from storage.dataset_info import DatasetInfo

if TYPE_CHECKING:
    from distributed import Client


@dataclass(frozen=True)
class ExtractResult:
    """The dataset, and what became of the images; `reused` says that it was stored already.

    `rejected` pairs paths with reasons, the first hundred; `counts` are rows per split, `statuses` rows per
    status (ok, rejected, duplicate), `ignored` files that were left out by rule (text files and the like).
    """

    dataset: str
    store: str
    n: int
    d: int
    m: int
    counts: dict[str, int]
    statuses: dict[str, int]
    rejected: tuple[tuple[str, str], ...]
    ignored: int
    reused: bool
    seconds: float
    images_per_second: float
    info: DatasetInfo

    def to_dict(self) -> dict[str, Any]:
        """Give the object that `topline extract --json` prints."""
        raise NotImplementedError


def extract(
    config: ExtractConfig,
    cluster: ClusterConfig | None = None,
    progress: Progress | None = None,
    client: Client | None = None,
) -> ExtractResult:
    """Extract features of all images that `config` names into a dataset of `config.store`.

    `cluster` says where (default: one worker a core); an open `client` goes before it.  The same images with
    the same options give the dataset that is there already.  An interrupted extraction goes on where it
    stopped when it is called again.  Raises `InputError` where the images cannot be listed,
    `RejectedShareError` where too many cannot be read, `InterruptedRunError` after Ctrl-C.
    """
    raise NotImplementedError
