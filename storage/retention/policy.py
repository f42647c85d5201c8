"""The rule by which things stay, and the reasons that it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True)
class RetentionPolicy:
    """What stays: the newest `keep` of each kind, and whatever is younger than `days`.

    Models stay too that are champion, would be after a rollback, or are pinned; with a model its run, and
    with models, runs and sweeps their datasets.  What is in use stays in any case.
    """

    keep: int = 10
    days: float = 30.0

    def kept(self, created: Mapping[str, str], now: datetime) -> set[str]:
        """Return the names, oldest first with the times they were made, that are new or young enough."""
        oldest = now - timedelta(days=self.days)
        newest = list(created)[-self.keep :]
        return {*newest, *(name for name, when in created.items() if is_after(when, oldest))}


def is_after(when: str, oldest: datetime) -> bool:
    """Return whether a time of a record is later than another; True for one that cannot be read."""
    try:
        return datetime.fromisoformat(when) > oldest
    except (TypeError, ValueError):
        return True
