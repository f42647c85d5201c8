"""What an extraction gives its caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from topline.storage.datasets import DatasetInfo


@dataclass(frozen=True)
class ExtractResult:
    """The dataset, and the outcome for the images; `reused` says that it was stored already.

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
        """Return the object that `topline extract --json` prints."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "info"}
        rejected = [{"path": path, "error": error} for path, error in self.rejected]
        return {
            **values,
            "rejected": rejected,
            "class_names": list(self.info.class_names),
            "features": self.info.features.get("about"),
        }
