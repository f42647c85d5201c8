"""What can happen to a store that is served, what the decision log says of it, and who is told."""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final, TextIO
from urllib.parse import urlsplit

import apprise

from topline.pipeline.errors import ConfigError
from topline.pipeline.registry import IMAGES, LOUD, SHIFTED
from topline.storage.models import DecisionRecord
from topline.storage.records import now
from topline.storage.stores import masked

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
        own = {"when": self.when, "event": self.kind.value, "store": self.store, "text": self.text}
        return {**own, **self.facts}

    def __str__(self) -> str:
        return f"{self.when} {self.kind.value}: {self.text}"


def decision_notices(entry: DecisionRecord, store: str) -> Iterator[Notice]:
    """Yield what an entry of the decision log is worth telling: the decision itself, and drift beside it."""
    kinds = {"promote": Kind.PROMOTED, "keep": Kind.KEPT, "rollback": Kind.ROLLED_BACK}
    kind = kinds.get(entry.action)
    if kind is Kind.KEPT and entry.repeated >= LOUD:
        kind = Kind.KEPT_AGAIN
    images = entry.evidence.get("images") or {}
    facts: dict[str, Any] = {"model": entry.model, "champion_before": entry.champion_before, "by": entry.by}
    facts |= {"images": images} if images else {}
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


class _WarnsOnce(logging.Handler):
    """Says once that it cannot write, and goes on trying."""

    _said = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's own name
        """Say why the line is lost."""
        if not self._said:
            self._said = True
            sys.stderr.write(
                f"warning: a line of the log is lost ({sys.exception()}): {record.getMessage()}\n"
            )


class _Stream(_WarnsOnce, logging.StreamHandler[TextIO]): ...


class _File(_WarnsOnce, RotatingFileHandler): ...


class NoticeLog:
    """Writes notices to a stream and to a file `path`, if any, of at most 1 MiB and five older ones.

    A closed stream or a full disk costs the line and not the run; standard error says so once.
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


logger = logging.getLogger(__name__)

CHAMPION = "champion"
#: Tags of a version: the model's URL, what was decided, and why.
MODEL, DECISION, REASON = "topline.model", "topline.decision", "topline.reason"

_DECISIONS = (Kind.PROMOTED, Kind.ROLLED_BACK, Kind.KEPT, Kind.KEPT_AGAIN)
_LONGEST_TAG = 5000


def mlflow_sender(name: str) -> Callable[[Notice], Sequence[str]]:
    """Return a sender of `Teller` that records decisions under the registered model `name`.

    Each model of the store is a version, and the champion has the alias "champion".  Raises `ConfigError`
    without a usable MLFLOW_TRACKING_URI, or without MLflow's client.
    """
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        raise ConfigError("--mlflow: set MLFLOW_TRACKING_URI to the address of MLflow's server")
    if not name.strip() or "'" in name:
        raise ConfigError(f"--mlflow {name!r} is not a name for a registered model: use one without quotes")
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise ConfigError("--mlflow needs MLflow's client: python -m pip install mlflow-skinny") from None
    try:
        client = MlflowClient()
    except Exception as error:  # noqa: BLE001 - each kind of address has its own client, with its own errors
        # Not what it says: that may hold the address with its password.
        raise ConfigError(
            "--mlflow: MLflow's client does not take the address in MLFLOW_TRACKING_URI"
            f" ({type(error).__name__}): give that of a server, http://HOST:PORT"
        ) from None

    def send(notice: Notice) -> Sequence[str]:
        if notice.kind not in _DECISIONS:
            return ()
        try:
            _note(client, name, notice)
        except (MlflowException, OSError):
            return (f"MLflow's model {name}",)
        return ()

    return send


def _note(client: Any, name: str, notice: Notice) -> None:
    url = f"{notice.store}/models/{notice.facts['model']}"
    if not client.search_registered_models(f"name = '{name}'"):
        client.create_registered_model(name, description=f"Models of the Topline store {notice.store}")
    found = [one for one in client.search_model_versions(f"name = '{name}'") if one.tags.get(MODEL) == url]
    reason = str(notice.facts.get("reason", ""))[:_LONGEST_TAG]
    tags = {MODEL: url, DECISION: notice.kind.value, REASON: reason}
    if found:
        version = found[0].version
        for key, value in tags.items():
            client.set_model_version_tag(name, version, key, value)
    else:
        # A server takes paths of its own disk alone for a source, and this one says where the model is.
        source = url if "://" in url else f"topline://{url.lstrip('/')}"
        version = client.create_model_version(name, source, tags=tags).version
    if notice.kind in (Kind.PROMOTED, Kind.ROLLED_BACK):
        client.set_registered_model_alias(name, CHAMPION, version)


#: Addresses that hold tokens or passwords, separated by blanks: an argument is seen by every user's `ps`.
NOTIFY = "TOPLINE_NOTIFY"

# Notices that wait; older ones than these give way, for the newest says more.
MOST_WAITING = 100
# What is still under way when the program ends has this long.
LAST_SECONDS = 15.0

_PLAIN = {"http": "json", "https": "jsons"}


def addresses(given: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return all addresses, those of --notify first; `ConfigError` for one that nothing can be sent to."""
    for address in given:
        if "@" in (urlsplit(address).netloc if "://" in address else ""):
            raise ConfigError(
                f"--notify {masked(address)}: other users of this machine see arguments; put an address with"
                f" a password into the environment variable {NOTIFY}"
            )
    found = (*given, *environ.get(NOTIFY, "").split())
    for address in found:
        _plugin(address)
    return found


def _plugin(address: str) -> apprise.NotifyBase:
    """Return what sends to an address; plain http and https get the notice as JSON."""
    # Its own lines would name the address with its token.
    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)
    scheme, _, rest = address.partition("://")
    made = apprise.Apprise.instantiate(address, suppress_exceptions=True)
    if made is None and rest and scheme.lower() in _PLAIN:
        made = apprise.Apprise.instantiate(f"{_PLAIN[scheme.lower()]}://{rest}", suppress_exceptions=True)
    if made is None:
        raise ConfigError(
            f"--notify {masked(address)} is not an address that notices can be sent to: use https://... for a"
            " webhook, mailto://, slack:// or another one that Apprise knows"
        )
    return made


class Teller:
    """Sends notices in order from its own thread; `send(notice)` returns the addresses that it missed."""

    def __init__(self, send: Callable[[Notice], Sequence[str]]) -> None:
        self._send = send
        self._waiting: queue.Queue[Notice | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._work, name="topline-notices", daemon=True)
        self._thread.start()

    def tell(self, notice: Notice) -> None:
        """Send a notice that is to be told, some time; others are left out."""
        if notice.kind.told:
            self._put(notice)

    def close(self) -> None:
        """Send what waits, for a few seconds at most."""
        self._put(None)
        self._thread.join(LAST_SECONDS)
        if self._thread.is_alive():
            logger.warning("the last notices were not sent within %g s", LAST_SECONDS)

    def _put(self, notice: Notice | None) -> None:
        while self._waiting.full():
            with suppress(queue.Empty):
                if (dropped := self._waiting.get_nowait()) is not None:
                    logger.warning("too many notices wait, so this one was not sent: %s", dropped)
        self._waiting.put(notice)

    def _work(self) -> None:
        while (notice := self._waiting.get()) is not None:
            try:
                missed = self._send(notice)
            except Exception as error:  # noqa: BLE001 - whatever a client raises, later notices are to be sent
                # Not what it says: that may hold the address with its password.
                logger.warning("a notice was not sent (%s): %s", type(error).__name__, notice)
                continue
            for address in missed:
                logger.warning("a notice did not reach %s: %s", masked(address), notice)


@contextmanager
def told(to: Sequence[str], mlflow: str = "") -> Iterator[Callable[[Notice], None]]:
    """Yield what sends a notice to all addresses, if there are any, and to MLflow's model `mlflow`."""
    plugins = [(address, _plugin(address)) for address in to]

    def send(notice: Notice) -> Sequence[str]:
        title, tone = f"topline {notice.kind.value}: {notice.store}", apprise.NotifyType(notice.kind.tone)
        return [
            address
            for address, plugin in plugins
            if not plugin.notify(body=notice.text, title=title, notify_type=tone)
        ]

    senders = [send, *([mlflow_sender(mlflow)] if mlflow else [])]
    # Each has a thread of its own: who is slow delays nobody else.
    with ExitStack() as stack:
        tellers = [stack.enter_context(closing(Teller(send))) for send in senders]

        def tell(notice: Notice) -> None:
            for teller in tellers:
                teller.tell(notice)

        yield tell
