"""Findings of a check of a store."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

#: Advice for a file of which there is no other copy in the store.
RESTORE = "restore it from a copy"


@dataclass(frozen=True, order=True)
class Finding:
    """One defect: `kind` is a stable word, `path` the file relative to the store's root.

    `rows` are the affected dataset rows start..stop-1, if any; `what` says what was found, `fix` what to do.
    Leftovers of interrupted work are `harmless`.
    """

    kind: str
    path: str
    what: str
    fix: str
    rows: tuple[int, int] | None = None
    harmless: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the finding as a JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        rows = f" (rows {self.rows[0]}-{self.rows[1] - 1})" if self.rows else ""
        # An error turned into a finding already says what to do.
        fix = "" if self.fix in self.what else f"; {self.fix}"
        return f"{self.path}: {self.what}{rows}{fix}"
