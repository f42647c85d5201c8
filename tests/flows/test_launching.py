"""What the caller of a flow gets when its server is away, hangs or dies; no server is needed for this."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.settings import PREFECT_API_URL, temporary_settings

from tests.pipeline.dashboard.test_monitoring import exit_code
from topline.flows import launching, reporting
from topline.flows.environment import FlowServerError
from topline.flows.launching import FLOWS, launch, require_server
from topline.flows.runners import run_flow
from topline.pipeline.errors import InputError, InterruptedRunError, PipelineError


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/api"


def test_a_server_that_hangs_is_one_sentence_at_its_deadline(
    silent_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "HEALTH_SECONDS", 0.5)
    with (
        temporary_settings({PREFECT_API_URL: silent_server}),
        pytest.raises(
            FlowServerError, match=f"Prefect's server at {silent_server} does not answer"
        ) as caught,
    ):
        require_server(silent_server)
    assert isinstance(caught.value, PipelineError)
    assert "prefect server start" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_server_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/api"
    with (
        temporary_settings({PREFECT_API_URL: url}),
        pytest.raises(FlowServerError, match=f"{url} does not answer .ConnectError"),
    ):
        require_server(url)


def test_an_address_in_the_environment_alone_makes_no_flow(
    store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody listens there: a command without --flow works, and one with it says so."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/api"
    monkeypatch.setenv("PREFECT_API_URL", url)
    words = ("train", "--store", store, "--workers", "0", "--tol", "0.01")
    with temporary_settings({PREFECT_API_URL: url}):
        assert exit_code(*words) == 0
        assert exit_code(*words, "--flow") == 1
    assert f"{url} does not answer" in capsys.readouterr().err


def test_an_embedded_server_that_does_not_start_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_slow(**_: Any) -> Any:
        raise RuntimeError("Timed out while attempting to connect.\nlong log")

    monkeypatch.setattr(launching, "get_client", too_slow)
    with pytest.raises(FlowServerError, match=r"embedded server does not answer .*topline doctor") as caught:
        require_server(None)
    assert "long log" not in str(caught.value)


Body = Callable[[], Any]


@pytest.fixture
def run_body(monkeypatch: pytest.MonkeyPatch, _command_line: None) -> Callable[[Body, Exception | None], Any]:
    """Launch a flow whose body is given, on a server that then fails with the given error."""

    def run(body: Body, server_error: Exception | None) -> Any:
        def as_prefect_does(**_: Any) -> Any:
            caller = reporting.current_caller()
            try:
                caller.result = body()
                caller.finished = True
            except Exception as error:
                caller.error = error
                if server_error is None:
                    raise
            if server_error is not None:
                raise server_error
            return caller.result

        monkeypatch.setattr(launching, "require_server", lambda _: None)
        monkeypatch.setattr(launching, "FLOWS", {"train": as_prefect_does})
        monkeypatch.setattr(launching.logging, "raiseExceptions", True)
        return launch("train", {}, None)

    return run


def test_a_result_that_is_stored_is_given_though_the_server_died(
    run_body: Callable[[Body, Exception | None], Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert run_body(lambda: "the model", httpx.ReadTimeout("no answer")) == "the model"
    assert "does not record the end of this flow run; the result is stored" in caplog.text


def test_the_job_s_own_error_comes_before_the_server_s(
    run_body: Callable[[Body, Exception | None], Any],
) -> None:
    def body() -> None:
        raise InputError("the folder is empty")

    with pytest.raises(InputError, match="the folder is empty"):
        run_body(body, httpx.ConnectError("refused"))


def test_an_error_of_the_job_is_the_same_object_with_its_cause(
    run_body: Callable[[Body, Exception | None], Any],
) -> None:
    cause = OSError("the disk")
    error = InterruptedRunError("stopped; topline train --resume r0001 goes on")
    error.__cause__ = cause

    def body() -> None:
        raise error

    with pytest.raises(InterruptedRunError) as caught:
        run_body(body, None)
    assert caught.value is error
    assert caught.value.__cause__ is cause


@pytest.mark.usefixtures("_command_line")
@pytest.mark.parametrize(
    "error",
    [httpx.HTTPError("401 Unauthorized"), ConcurrencySlotAcquisitionError("slots: 503 Service Unavailable")],
)
def test_a_server_that_fails_before_the_work_is_a_server_error(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refused(**_: Any) -> Any:
        raise error

    monkeypatch.setattr(launching, "require_server", lambda _: None)
    monkeypatch.setattr(launching, "FLOWS", {"train": refused})
    monkeypatch.setattr(launching.logging, "raiseExceptions", True)
    with pytest.raises(FlowServerError, match=rf"failed before the work began .*{error}"):
        run_flow("train", {})


def test_every_flow_is_described_and_keeps_no_pickles() -> None:
    assert set(FLOWS) == {"extract", "train", "evaluate", "run", "retrain", "sweep"}
    for name, flow in FLOWS.items():
        assert flow.name == name
        assert flow.description
        assert flow.flow_run_name
        assert flow.persist_result is False
        assert flow.result_serializer == "json"
        schema = flow.parameters
        groups = [schema.properties, *(one.get("properties", {}) for one in schema.definitions.values())]
        nameless = [
            parameter for group in groups for parameter, one in group.items() if not one.get("description")
        ]
        assert nameless == [], name
