"""What a version of a dataset has otherwise than its images, so that it can be repeated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from topline.storage.errors import IntegrityError
from topline.storage.fingerprint import canonical_json, digest_bytes


@dataclass(frozen=True)
class RecordedEdits:
    """Corrected labels and rows left out, by sample id.

    `labels` are the label before all corrections and the one now; `left_out` holds digests of ids, for of a
    row that is left out nothing is kept.
    """

    labels: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.labels) + len(self.left_out)

    def leave_out(self, sample_id: str) -> bool:
        """Return whether the row of that id was left out."""
        return digest_of_id(sample_id) in self.left_out


def digest_of_id(sample_id: str) -> str:
    """Return the digest by which a row that was left out is known again."""
    return digest_bytes(sample_id.encode())


def dump_edits(edits: RecordedEdits) -> bytes:
    """Return the JSON file of the edits."""
    labels = {name: list(pair) for name, pair in edits.labels.items()}
    return canonical_json({"labels": labels, "left_out": sorted(edits.left_out)})


def load_edits(data: bytes, place: str) -> RecordedEdits:
    """Return the edits that `dump_edits` wrote; `IntegrityError` naming `place` if they cannot be read."""
    try:
        found = json.loads(data)
        labels = {str(name): (str(then), str(now)) for name, (then, now) in found["labels"].items()}
        return RecordedEdits(labels, frozenset(map(str, found["left_out"])))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise IntegrityError(f"{place} is damaged: it is not a record of edits") from error
