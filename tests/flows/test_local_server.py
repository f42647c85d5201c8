"""The server of `topline serve`: whoever shares the machine needs its password."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import httpx
import pytest

from topline.flows.errors import FlowServerError
from topline.flows.local_server import local_server


@pytest.mark.slow
@pytest.mark.timeout(240)
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
