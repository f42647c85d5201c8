"""The server of `topline serve`: whoever shares the machine needs its password."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from tests.free_ports import free_port
from tests.processes import until
from topline.flows import local_server as module
from topline.flows.environment import FlowServerError
from topline.flows.local_server import local_server
from topline.storage.stores import Clock, LeaseHeldError

#: A server that asks for a password, at a port of its arguments; it ends where another one listens there.  As
#: Prefect's does, it takes a port whose last connections have not been forgotten by the system, for a minute.
STAND_IN = """
import base64, http.server, sys
port, password = sys.argv[1:]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        expected = "Basic " + base64.b64encode(password.encode()).decode()
        self.send_response(200 if self.headers.get("Authorization") == expected else 401)
        self.end_headers()
with http.server.HTTPServer(("127.0.0.1", int(port)), Handler) as server:
    server.serve_forever()
"""


@pytest.mark.slow
def test_the_api_asks_for_the_password(tmp_path: Path) -> None:
    """A real server; who finds it running is given the same password."""
    environ = {**os.environ, "PREFECT_HOME": str(tmp_path)}
    environ.pop("PREFECT_SERVER_API_AUTH_STRING", None)
    with local_server(environ) as server, local_server(environ) as found:
        assert found == server
        asked = f"{server.url}/flow_runs/count"
        user, _, word = server.password.partition(":")
        assert httpx.post(asked, json={}, timeout=60).status_code == httpx.codes.UNAUTHORIZED
        assert (
            httpx.post(asked, json={}, auth=(user, word[:-1]), timeout=60).status_code
            == httpx.codes.UNAUTHORIZED
        )
        assert httpx.post(asked, json={}, auth=(user, word), timeout=60).json() == 0
        assert server.kept_in.read_text() == server.password
        assert word not in repr(server)
    assert stat.S_IMODE(server.kept_in.stat().st_mode) == 0o600
    assert word.encode() not in (tmp_path / "topline-server.log").read_bytes()


def test_a_spoiled_password_is_refused(tmp_path: Path) -> None:
    (tmp_path / "topline-server.password").write_text("\n")
    with (
        pytest.raises(FlowServerError, match="holds no password of the form user:word: delete it"),
        local_server({"PREFECT_HOME": str(tmp_path)}),
    ):
        pass


def started(port: int, environ: Mapping[str, str], log: Path, lock: int) -> subprocess.Popen[bytes]:
    """Start the stand-in as the server is started."""
    words = [sys.executable, "-S", "-c", STAND_IN, str(port), environ["PREFECT_SERVER_API_AUTH_STRING"]]
    with log.open("wb") as output:
        return subprocess.Popen(words, stderr=output, pass_fds=(lock,), start_new_session=True)


@pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning")
def test_the_last_who_uses_a_server_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two stores that are served, the one served first started it, and is not served any more."""
    monkeypatch.setattr(module, "_started", started)
    first, second = (local_server({"PREFECT_HOME": str(tmp_path)}) for _ in range(2))
    server = first.__enter__()
    assert second.__enter__() == server
    first.__exit__(None, None, None)
    assert httpx.get(server.url, timeout=60).status_code == httpx.codes.UNAUTHORIZED
    second.__exit__(None, None, None)
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url, timeout=60)


@pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning")
def test_a_server_that_is_killed_is_started_again_at_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_started", started)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
    with local_server({"PREFECT_HOME": str(tmp_path)}) as server:
        number = int((tmp_path / "topline-server.pid").read_text())
        os.killpg(number, signal.SIGKILL)
        until(lambda: f"{server.url} had ended, and was started again" in caplog.text, "another server")
        assert httpx.get(server.url, timeout=60).status_code == httpx.codes.UNAUTHORIZED
        assert int((tmp_path / "topline-server.pid").read_text()) != number
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url, timeout=60)


def test_a_port_taken_by_another_server_in_the_meantime_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two users start theirs at the same moment: both find 4200 free, and one of them gets it."""
    port, genuine = free_port(), module.free_port
    first = iter([port])
    monkeypatch.setattr(module, "_started", started)
    monkeypatch.setattr(module, "free_port", lambda preferred=0: next(first, None) or genuine(preferred))
    other = started(port, {"PREFECT_SERVER_API_AUTH_STRING": "other:word"}, tmp_path / "other.log", 2)
    with other:
        until(lambda: genuine(port) != port, "the other server")
        with (
            local_server({"PREFECT_HOME": str(tmp_path)}) as server,
            local_server({"PREFECT_HOME": str(tmp_path)}) as found,
        ):
            assert server.url != f"http://127.0.0.1:{port}/api"
            assert found == server
            assert httpx.get(f"http://127.0.0.1:{port}/", timeout=60).status_code == httpx.codes.UNAUTHORIZED
        other.kill()


@pytest.mark.parametrize("ends", [True, False], ids=["it ends", "it goes on"])
def test_a_process_that_ends_the_server_is_waited_for_with_a_word_and_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ends: bool
) -> None:
    """The other has the lock of the users; only who sleeps moves the clock on."""
    slept: list[float] = []
    monkeypatch.setattr(module, "_started", started)
    with (tmp_path / "topline-server.users").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            if ends and sum(slept) > 30.0:
                fcntl.flock(other, fcntl.LOCK_UN)

        clock = Clock(monotonic=lambda: sum(slept), sleep=sleep)
        waiting = f"another process is ending Prefect's server in {tmp_path}"
        with contextlib.ExitStack() as stack:
            if not ends:
                said = f"^{waiting}, and did not end within 120 s: end it, or run this again later$"
                stack.enter_context(pytest.raises(LeaseHeldError, match=said))
            with local_server({"PREFECT_HOME": str(tmp_path)}, clock) as server:
                assert httpx.get(server.url, timeout=60).status_code == httpx.codes.UNAUTHORIZED
    assert caplog.messages == [f"{waiting}: waiting up to 120 s"]


def test_a_home_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    with (
        pytest.raises(FlowServerError, match=r"cannot be locked .*: set PREFECT_HOME to a folder on a local"),
        local_server({"PREFECT_HOME": str(tmp_path)}),
    ):
        pytest.fail("a server was used without locks")


@pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning")
def test_a_server_that_never_answers_is_waited_for_with_a_word_and_an_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its process has the lock, and nobody answers at its address; each sleep takes fifty times as long."""
    slept: list[float] = []
    clock = Clock(monotonic=lambda: sum(slept), sleep=lambda seconds: slept.append(50.0 * seconds))
    (tmp_path / "topline-server.url").write_text(f"http://127.0.0.1:{free_port()}/api")
    words = [sys.executable, "-c", "import time; time.sleep(600)"]
    with (tmp_path / "topline-server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with subprocess.Popen(words, pass_fds=(lock.fileno(),), start_new_session=True) as mute:
            (tmp_path / "topline-server.pid").write_text(str(mute.pid))
            with (
                pytest.raises(FlowServerError, match=r"does not answer at the address in .*: end it first"),
                local_server({"PREFECT_HOME": str(tmp_path)}, clock),
            ):
                pass
    assert caplog.messages == [f"the server in {tmp_path} does not answer yet: waiting up to 180 s"]
