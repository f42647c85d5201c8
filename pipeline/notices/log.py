"""A line for every notice, on a stream and in a file that is rotated."""

from __future__ import annotations

import json
import logging
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from topline.pipeline.errors import ConfigError
from topline.pipeline.notices.notice import Notice

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
