"""How a store stands, in a few lines for a terminal: the tiles of the overview without the page."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from topline.pipeline.dashboard.monitoring import health
from topline.pipeline.dashboard.overview import last_run
from topline.pipeline.dashboard.run_status import UNFINISHED
from topline.pipeline.dashboard.store_follower import StoreFollower
from topline.storage.stores import Store


@dataclass(frozen=True)
class StoreStatus:
    """Lines of a name and what is said of it; `health` is what `/health` answers.

    `unfinished` is the last run where it stopped early or is not heard of any more.
    """

    lines: Mapping[str, str]
    health: Mapping[str, Any]
    unfinished: str | None = None

    @property
    def healthy(self) -> bool:
        """Whether no model is damaged and no schedule is dead."""
        return bool(self.health["status"] == "ok")


def store_status(store: Store, now: float | None = None) -> StoreStatus:
    """Return how a store stands at the time `now`, in seconds since 1970 (default: now)."""
    seen = StoreFollower(store).overview(time.time() if now is None else now)
    lines = {tile.label: f"{tile.figure} ({tile.note})" if tile.note else tile.figure for tile in seen.tiles}
    free = store.free_bytes()
    if free is not None:
        lines["room left"] = f"{free / 2**30:,.1f} GiB"
    last = last_run(seen.runs)
    return StoreStatus(lines, health(seen), last.id if last and last.words in UNFINISHED else None)
