"""What a check of a store reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

#: What to do with a file that nothing else holds.
RESTORE = "restore it from a copy"


@dataclass(frozen=True, order=True)
class Finding:
    """One thing that is wrong: `kind` is a stable word, `path` the file from the store's root.

    `rows` are the dataset's rows start..stop-1 that it touches, None where it touches none; `what` says
    what was seen, `fix` what to do.  Leftovers of interrupted work are findings that harm nobody:
    `harmless` is True.
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
        # An error that became a finding says itself what to do.
        fix = "" if self.fix in self.what else f"; {self.fix}"
        return f"{self.path}: {self.what}{rows}{fix}"
