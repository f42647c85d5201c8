"""What can happen to a store that is served, each as one value, and what the decision log says of it."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TextIO

from topline.pipeline.errors import ConfigError
from topline.pipeline.registry import IMAGES, LOUD, SHIFTED
from topline.storage.models import DecisionRecord
from topline.storage.records import now

#: A store with less room than this is about to fail.
DISK_LOW_BYTES: Final = 1 << 30


class Kind(StrEnum):
    """What happened.  `told`: somebody hears of it; the others are lines of the log alone."""

    SERVING = "serving"
    ENDED = "ended"
    STARTED = "started"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled back"
    KEPT = "kept"
    KEPT_AGAIN = "kept again"
    FAILED = "failed"
    FAILED_AGAIN = "failed again"
    WELL_AGAIN = "well again"
    PAUSED = "paused"
    MISSED = "missed"
    DRIFT = "drift"
    DISK_LOW = "disk low"

    @property
    def told(self) -> bool:
        """Whether somebody is to hear of it."""
        return self in _TONES

    @property
    def tone(self) -> str:
        """How bad it is, in Apprise's words: info, success, warning or failure."""
        return _TONES.get(self, "info")


_TONES: Final[Mapping[Kind, str]] = {
    Kind.PROMOTED: "success",
    Kind.ROLLED_BACK: "warning",
    Kind.KEPT: "info",
    Kind.KEPT_AGAIN: "warning",
    Kind.FAILED: "failure",
    Kind.WELL_AGAIN: "success",
    Kind.PAUSED: "failure",
    Kind.MISSED: "warning",
    Kind.DRIFT: "warning",
    Kind.DISK_LOW: "failure",
}


@dataclass(frozen=True)
class Notice:
    """One event of a store; `facts` are plain JSON values for whoever reads it by program."""

    kind: Kind
    store: str
    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    when: str = field(default_factory=now)

    def to_dict(self) -> dict[str, Any]:
        """Return the object that a line of JSON holds."""
        return {
            "when": self.when,
            "event": self.kind.value,
            "store": self.store,
            "text": self.text,
            **self.facts,
        }

    def __str__(self) -> str:
        return f"{self.when} {self.kind.value}: {self.text}"


def decision_notices(entry: DecisionRecord, store: str) -> Iterator[Notice]:
    """Yield what an entry of the decision log is worth telling: the decision itself, and drift beside it."""
    kinds = {"promote": Kind.PROMOTED, "keep": Kind.KEPT, "rollback": Kind.ROLLED_BACK}
    kind = kinds.get(entry.action)
    if kind is Kind.KEPT and entry.repeated >= LOUD:
        kind = Kind.KEPT_AGAIN
    images = entry.evidence.get("images") or {}
    facts = {
        "model": entry.model,
        "champion_before": entry.champion_before,
        "by": entry.by,
        **({"images": images} if images else {}),
    }
    if kind is not None:
        text = _sentence(kind, entry)
        if images:
            shown = ", ".join(f"{images.get(name, 0):,} {name}" for name in IMAGES)
            text += f" (of {images.get('seen', 0):,} images {shown})"
        yield Notice(kind, store, text, {**facts, "reason": entry.reason}, entry.when)
    features = (entry.evidence.get("drift") or {}).get("features")
    if features is not None and features > SHIFTED:
        text = (
            f"the features that {entry.model} was trained on moved by a stability index of {features:.3g}"
            f" since {entry.champion_before} (above {SHIFTED:g}): look at the new images"
        )
        yield Notice(Kind.DRIFT, store, text, {**facts, "stability_index": features}, entry.when)


def _sentence(kind: Kind, entry: DecisionRecord) -> str:
    match kind:
        case Kind.PROMOTED:
            before = f" in place of {entry.champion_before}" if entry.champion_before else ""
            return f"{entry.model} is champion{before}: {entry.reason}"
        case Kind.KEPT | Kind.KEPT_AGAIN:
            champion = entry.champion_before or "no champion"
            return f"{champion} stays champion, {entry.model} is not promoted: {entry.reason}"
        case _:
            return f"{entry.model} is champion again: {entry.reason}"


def disk_notice(store: str, free: int) -> Notice:
    """Return the notice of a store that has `free` bytes of room left."""
    text = f"{free / 2**20:,.0f} MiB are left where {store} lies: free space before the next retraining"
    return Notice(Kind.DISK_LOW, store, text, {"free_bytes": free})


FILE_BYTES = 1 << 20
FILES_KEPT = 5


class _SaysOnce(logging.Handler):
    """Says once that it cannot write, and goes on trying."""

    _said = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's own name
        """Say why the line is lost."""
        if not self._said:
            self._said = True
            sys.stderr.write(
                f"warning: a line of the log is lost ({sys.exception()}): {record.getMessage()}\n"
            )


class _Stream(_SaysOnce, logging.StreamHandler[TextIO]):
    """Writes lines to a stream."""


class _File(_SaysOnce, RotatingFileHandler):
    """Writes lines to a file that is rotated."""


class NoticeLog:
    """Writes notices to a stream and to a file `path`, if any, of at most 1 MiB and five older ones.

    A stream whose reader is gone (`topline serve ... | head`) and a full disk cost the line and not the run;
    standard error says so once.
    """

    def __init__(self, stream: TextIO, path: Path | None = None, *, as_json: bool = False) -> None:
        self._as_json = as_json
        self._handlers: list[logging.Handler] = [_Stream(stream)]
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                kept = _File(path, maxBytes=FILE_BYTES, backupCount=FILES_KEPT, encoding="utf-8")
            except OSError as error:
                raise ConfigError(
                    f"--log {path} cannot be written ({error.strerror or error}): name another file"
                ) from error
            self._handlers.append(kept)

    def write(self, notice: Notice) -> None:
        """Write one line; several threads may."""
        line = json.dumps(notice.to_dict(), ensure_ascii=False) if self._as_json else str(notice)
        record = logging.LogRecord("topline", logging.INFO, "", 0, line.replace("\n", " "), None, None)
        for handler in self._handlers:
            handler.handle(record)

    def close(self) -> None:
        """Close the file; the stream is the caller's."""
        for handler in self._handlers:
            handler.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
