"""The history of a run: one JSON line a record, appended; the truth that reports and dashboards read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage.stores import Store


class HistoryWriter:
    """Appends to runs/<run>/history.jsonl; also a context manager that closes itself.

    On a local disk a line is with the operating system when `append` returns and on the disk within a
    second of training time; on an object store the file is rewritten whole, at most every `interval` seconds
    and on `close`.  Numbers that JSON cannot hold (NaN, infinities) are written as null.
    """

    def __init__(self, store: Store, run_id: str, *, interval: float = 1.0) -> None:
        raise NotImplementedError

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one record."""
        raise NotImplementedError

    def flush(self) -> None:
        """Bring everything appended so far to where it survives a crash of the machine."""
        raise NotImplementedError

    def close(self) -> None:
        """Flush and close; more than once is harmless."""
        raise NotImplementedError

    def __enter__(self) -> HistoryWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_history(store: Store, run_id: str) -> list[dict[str, Any]]:
    """All records of a run, oldest first; none if it has no history yet.

    A last line that a crash has torn is left out; any other bad line is an `IntegrityError` naming it.
    """
    raise NotImplementedError
