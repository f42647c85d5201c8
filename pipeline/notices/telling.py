"""Notices to people, by Apprise: webhooks, Slack, e-mail and what else it knows; never in anybody's way."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import apprise

from topline.pipeline.errors import ConfigError
from topline.pipeline.notices.notice import Kind, Notice
from topline.storage.stores import masked

logger = logging.getLogger(__name__)

CHAMPION = "champion"
#: Tags of a version: the model's URL, what was decided, and why.
MODEL, DECISION, REASON = "topline.model", "topline.decision", "topline.reason"

_DECISIONS = (Kind.PROMOTED, Kind.ROLLED_BACK, Kind.KEPT, Kind.KEPT_AGAIN)
_LONGEST_TAG = 5000


def mlflow_sender(name: str) -> Callable[[Notice], Sequence[str]]:
    """Return what notes a decision under the registered model `name`, as a sender of `Teller`.

    Each model of the store is a version; the alias "champion" is at the one that was promoted last, or that a
    rollback brought back.  The server is that of MLFLOW_TRACKING_URI.  `ConfigError` where that is not set
    or nothing that MLflow's client takes, or the client is missing.
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
    tags = {
        MODEL: url,
        DECISION: notice.kind.value,
        REASON: str(notice.facts.get("reason", ""))[:_LONGEST_TAG],
    }
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
    """Sends notices from a thread of its own, in their order, and says once for each what could not be sent.

    `send(notice)` returns the addresses that did not take it; tests pass their own.
    """

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
            self._drop_oldest()
        self._waiting.put(notice)

    def _drop_oldest(self) -> None:
        try:
            dropped = self._waiting.get_nowait()
        except queue.Empty:
            return
        if dropped is not None:
            logger.warning("too many notices wait, so this one was not sent: %s", dropped)

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


def _sender(to: Sequence[str]) -> Callable[[Notice], Sequence[str]]:
    plugins = [(address, _plugin(address)) for address in to]

    def send(notice: Notice) -> Sequence[str]:
        title = f"topline {notice.kind.value}: {notice.store}"
        return [
            address
            for address, plugin in plugins
            if not plugin.notify(
                body=notice.text, title=title, notify_type=apprise.NotifyType(notice.kind.tone)
            )
        ]

    return send


@contextmanager
def told(to: Sequence[str], mlflow: str = "") -> Iterator[Callable[[Notice], None]]:
    """Yield what sends a notice to all addresses, if there are any, and to MLflow's model `mlflow`."""
    senders = [_sender(to), *([mlflow_sender(mlflow)] if mlflow else [])]
    # Each has a thread of its own: who is slow delays nobody else.
    with ExitStack() as stack:
        tellers = [stack.enter_context(closing(Teller(send))) for send in senders]

        def tell(notice: Notice) -> None:
            for teller in tellers:
                teller.tell(notice)

        yield tell
