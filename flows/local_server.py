"""A Prefect server of our own on the loopback interface of one machine: nothing to install or to start.

Its database is in Prefect's home, where the server holds a lock while it lives: a later start, or one after a
kill, uses the running server, and its last user ends it.  Other users of the machine can reach the loopback
interface too, so the server requires a password, kept in the same folder.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from urllib.parse import urlsplit

import httpx
import psutil

from topline.flows.environment import FlowServerError
from topline.storage.stores import DEFAULT_TERMS, Clock, LeaseHeldError, wait_for_lock

logger = logging.getLogger(__name__)

PORT = 4200
START_SECONDS = 180.0
END_SECONDS = 15.0
# A dead server is noticed after this many seconds; restarts of a failing one become rarer.
LOOK_SECONDS, LONGEST_PAUSE = 2.0, 300.0
#: Log file of our own server, in Prefect's home.
LOG = "topline-server.log"
_ADDRESS = "topline-server.url"
_LOCK, _NUMBER, _USERS = "topline-server.lock", "topline-server.pid", "topline-server.users"


class _EndedError(FlowServerError):
    """Our own server ended before it answered."""


@dataclass(frozen=True)
class LocalServer:
    """Address of our own server, and its password "user:word" with the file that keeps it."""

    url: str
    password: str = field(repr=False)
    kept_in: Path


@contextmanager
def local_server(environ: Mapping[str, str], clock: Clock = DEFAULT_TERMS.clock) -> Iterator[LocalServer]:
    """Start a server or find the running one, until the block ends.

    Raises `FlowServerError` or `LeaseHeldError` if it does not start.
    """
    home = Path(environ.get("PREFECT_HOME") or "~/.prefect").expanduser()
    home.mkdir(parents=True, exist_ok=True)
    kept_in = home / "topline-server.password"
    password = environ.get("PREFECT_SERVER_API_AUTH_STRING") or _kept_password(kept_in)
    keeper = _Keeper({**environ, "PREFECT_SERVER_API_AUTH_STRING": password}, home)
    with closing(keeper), _shared_use(home, clock):
        url = keeper.started() or _running_url(home, password, clock)
        with keeper.kept(url):
            yield LocalServer(url, password, kept_in)


class _Keeper:
    """Starts a server if none runs in a home, repeatedly while it is kept."""

    def __init__(self, environ: Mapping[str, str], home: Path) -> None:
        self._environ = environ
        self._home = home
        self._processes: list[subprocess.Popen[bytes]] = []

    def close(self) -> None:
        """Reap the processes that have ended."""
        for process in self._processes:
            process.poll()

    def started(self, port: int | None = None) -> str | None:
        """Start a server and return its address once it answers; None if one is running."""
        lock = os.open(self._home / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not _try_lock(lock):
                return None
            start = _started_on_a_port if port is None else partial(_answering, port)
            url, process = start(self._environ, self._home, lock)
            self._processes.append(process)
            return url
        finally:
            os.close(lock)

    @contextmanager
    def kept(self, url: str) -> Iterator[None]:
        """Restart the server at its address whenever it ends, after growing pauses."""
        ended = threading.Event()

        def keep() -> None:
            pause = LOOK_SECONDS
            while not ended.wait(pause):
                try:
                    if self.started(urlsplit(url).port) is not None:
                        logger.warning("Prefect's server at %s had ended, and was started again", url)
                    pause = LOOK_SECONDS
                except (FlowServerError, OSError) as error:
                    pause = min(2 * pause, LONGEST_PAUSE)
                    logger.warning("%s; it is tried again after %.0f s", error, pause)

        thread = threading.Thread(target=keep, name="topline-server-keeper", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


@contextmanager
def _shared_use(home: Path, clock: Clock) -> Iterator[None]:
    """Use the server of a home, and end it on exit unless others use it."""
    users = os.open(home / _USERS, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        wait_for_lock(users, fcntl.LOCK_SH, f"another process is ending Prefect's server in {home}", clock)
    except OSError as error:
        os.close(users)
        if isinstance(error, LeaseHeldError):
            raise
        raise FlowServerError(
            f"files in {home} cannot be locked ({error.strerror}), by which processes share Prefect's server:"
            " set PREFECT_HOME to a folder on a local disk"
        ) from error
    try:
        yield
    finally:
        if _try_lock(users):
            # Whoever started it: a live server holds the other lock.
            lock = os.open(home / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            if not _try_lock(lock):
                end_session(int((home / _NUMBER).read_text(encoding="utf-8")))
            os.close(lock)
        os.close(users)


def _try_lock(descriptor: int) -> bool:
    """Lock a file if it is free, and return whether it was."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _started_on_a_port(
    environ: Mapping[str, str], home: Path, lock: int
) -> tuple[str, subprocess.Popen[bytes]]:
    """Start a server at the usual port, or at any if another program takes that meanwhile."""
    try:
        return _answering(free_port(PORT), environ, home, lock)
    except _EndedError:
        # Whether the other program is still there does not matter: it may have ended by now.
        return _answering(free_port(), environ, home, lock)


def _answering(
    port: int, environ: Mapping[str, str], home: Path, lock: int
) -> tuple[str, subprocess.Popen[bytes]]:
    """Start a server, and return its address and process once it answers."""
    url, log = f"http://127.0.0.1:{port}/api", home / LOG
    process = _started(port, {**environ, "PREFECT_API_URL": url}, log, lock)
    try:
        (home / _NUMBER).write_text(str(process.pid), encoding="utf-8")
        (home / _ADDRESS).write_text(url, encoding="utf-8")
        _wait_until_it_answers(url, environ["PREFECT_SERVER_API_AUTH_STRING"], process, log)
    except BaseException:
        end_session(process.pid)
        process.poll()
        raise
    return url, process


def free_port(preferred: int = 0) -> int:
    """Return the preferred port of the loopback interface if it is free, else another one."""
    for port in (preferred, 0):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise FlowServerError("no port of the loopback interface is free: end a program that has many")


def _kept_password(place: Path) -> str:
    """Return the password of this user's servers, private to the user and made on first use."""
    if not place.exists():
        with NamedTemporaryFile("w", dir=place.parent, encoding="utf-8") as made, suppress(FileExistsError):
            made.write(f"topline:{secrets.token_urlsafe(24)}")
            made.flush()
            os.link(made.name, place)
    password = place.read_text(encoding="utf-8").strip()
    if ":" not in password:
        raise FlowServerError(
            f"{place} holds no password of the form user:word: delete it, and another is made"
        )
    return password


def _started(port: int, environ: Mapping[str, str], log: Path, lock: int) -> subprocess.Popen[bytes]:
    words = ["-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    # In its own session, so that Ctrl-C does not end it before the last runs are recorded.
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, *words],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(lock,),
            start_new_session=True,
        )


def _running_url(home: Path, password: str, clock: Clock) -> str:
    """Return the address of the server that holds the lock, which may still be starting."""
    address, told, deadline = home / _ADDRESS, False, clock.monotonic() + START_SECONDS
    while clock.monotonic() < deadline:
        with suppress(OSError):
            url = address.read_text(encoding="utf-8").strip()
            if url and _answers(url, password):
                return url
        if not told:
            told = True
            logger.warning("the server in %s does not answer yet: waiting up to %g s", home, START_SECONDS)
        clock.sleep(0.2)
    raise FlowServerError(
        f"a Prefect server runs in {home} and does not answer at the address in {address}: end it first"
    )


def _wait_until_it_answers(url: str, password: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if _answers(url, password):
            return
        time.sleep(0.5)
    ended = process.poll() is not None
    outcome = "ended" if ended else f"did not answer within {START_SECONDS:g} s"
    raise (_EndedError if ended else FlowServerError)(
        f"Prefect's server at {url} {outcome}: its log is {log}, and topline doctor says more"
    )


def _answers(url: str, password: str) -> bool:
    """Return whether a server there accepts the password; another user's does not."""
    user, _, word = password.partition(":")
    with suppress(httpx.TransportError):
        answer = httpx.get(f"{url}/admin/version", auth=(user, word), timeout=5.0)
        return answer.status_code == httpx.codes.OK
    return False


def end_session(leader: int) -> None:
    """End the leader of a session, and its descendants."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(leader, number)
        with suppress(psutil.TimeoutExpired, psutil.NoSuchProcess):
            psutil.Process(leader).wait(END_SECONDS)
        if not psutil.pid_exists(leader):
            return
