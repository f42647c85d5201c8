"""A progress that remembers what a stage told it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class Recorder:
    """Remember stages, counts and facts; `act` once, after `stop_after` units of a stage."""

    def __init__(self, stop_after: int | None = None, act: Callable[[], object] = lambda: None) -> None:
        self.stages: list[tuple[str, int | None, str]] = []
        self.counts: dict[str, int] = {}
        self.facts: list[Mapping[str, Any]] = []
        self._stop_after, self._act = stop_after, act

    def begin(self, stage: str, total: int | None = None, unit: str = "") -> None:
        self.stages.append((stage, total, unit))
        self.counts.setdefault(stage, 0)

    def advance(self, amount: int = 1) -> None:
        stage = self.stages[-1][0] if self.stages else ""
        self.counts[stage] = self.counts.get(stage, 0) + amount
        if self._stop_after is not None and self.counts[stage] >= self._stop_after:
            self._stop_after = None
            self._act()

    def note(self, facts: Mapping[str, Any]) -> None:
        self.facts.append(dict(facts))
