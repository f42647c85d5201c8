"""What the pipeline logs: the lines that are said, and kept with the run that they are about."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

LOGGER: Final = logging.getLogger("topline")
#: What was found and chosen before the work begins is said as it is; of others, warnings alone.
SAID: Final = ("topline.pipeline.ingest", "topline.pipeline.jobs", "topline.pipeline.sweep.choice")
#: Lines that wait for a run; of more, the oldest go.
MOST_WAITING: Final = 500


def say_choices(level: int = logging.INFO) -> None:
    """Let the lines about what was found and chosen through, and others from `level` on."""
    for name in SAID:
        logging.getLogger(name).setLevel(min(level, logging.INFO))


class _Kept(logging.Handler):
    """Holds lines until a run's history takes them."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.waiting: deque[dict[str, Any]] = deque(maxlen=MOST_WAITING)

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line."""
        line = {"event": "log", "level": record.levelname.lower(), "reason": record.getMessage()}
        self.waiting.append({**line, "at": round(record.created, 3)})


@contextmanager
def kept_lines(*further: logging.Handler) -> Iterator[None]:
    """Keep the lines that are logged meanwhile for a run's history, and give them to further handlers."""
    wanted: list[logging.Handler] = [*further]
    if not any(isinstance(handler, _Kept) for handler in LOGGER.handlers):
        wanted.append(_Kept())
    if not LOGGER.hasHandlers() and logging.lastResort is not None:
        # Which logging takes only where there is no other.
        wanted.append(logging.lastResort)
    say_choices(LOGGER.getEffectiveLevel())
    for handler in wanted:
        LOGGER.addHandler(handler)
    try:
        yield
    finally:
        for handler in wanted:
            LOGGER.removeHandler(handler)


def taken_lines() -> list[dict[str, Any]]:
    """Return the lines that wait, as events of a history, and let go of them."""
    found: list[dict[str, Any]] = []
    for handler in LOGGER.handlers:
        while isinstance(handler, _Kept) and handler.waiting:
            found.append(handler.waiting.popleft())
    return found
