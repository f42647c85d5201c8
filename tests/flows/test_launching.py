"""What the caller of a flow gets whatever its server does, what is tried again, and what is set before."""

from __future__ import annotations

import errno
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect import Task
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.settings.models.server.events import ServerEventsSettings
from prefect.settings.models.server.services import ServerServicesDBVacuumSettings

from tests.pipeline.conftest import exit_code
from tests.processes import run_program
from topline.flows import environment, launching, reporting
from topline.flows.environment import FlowServerError
from topline.flows.launching import FLOWS, launch, refuse_credentials, require_server
from topline.flows.runners import run_flow
from topline.flows.tasks import is_transient, repeatable
from topline.pipeline.errors import (
    ClusterError,
    ConfigError,
    InputError,
    InterruptedRunError,
    PipelineError,
    RejectedShareError,
)
from topline.pipeline.options import ClusterConfig, TrainConfig
from topline.solvers.errors import InvalidProblemError, NonFiniteError
from topline.storage.errors import AccessError, DiskFullError, IntegrityError, NotFoundError


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


@pytest.mark.parametrize(
    "error",
    [
        ClusterError("no worker"),
        AccessError("s3 is away"),
        ConnectionResetError("peer"),
        TimeoutError("slow"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_does_not_answer_may_answer_later(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("k"),
        InputError("no images"),
        RejectedShareError("too many"),
        InterruptedRunError("stopped by Ctrl-C"),
        InvalidProblemError("a label out of range"),
        NonFiniteError("NaN in row 3"),
        IntegrityError("rows 0-63"),
        NotFoundError("d0007"),
        DiskFullError("no room"),
        OSError(errno.ENOSPC, "no room"),
        PermissionError("read-only"),
        ValueError("anything else"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_bad_data_and_bad_options_stay_bad(error: Exception) -> None:
    assert not is_transient(error)


def test_a_store_that_refuses_permission_is_not_asked_again() -> None:
    error = AccessError("the store is read-only")
    error.__cause__ = PermissionError("denied")
    assert not is_transient(error)


def interrupted_by(cause: Exception) -> InterruptedRunError:
    error = InterruptedRunError("resume it")
    error.__cause__ = cause
    return error


def test_a_run_that_lost_its_scheduler_is_tried_again_and_one_without_room_is_not() -> None:
    assert is_transient(interrupted_by(ClusterError("the scheduler is gone")))
    assert is_transient(interrupted_by(AccessError("s3 is away")))
    assert not is_transient(interrupted_by(DiskFullError("no room")))
    assert not is_transient(interrupted_by(KeyboardInterrupt()))


LOST = httpx.ConnectError("the server was killed")


@pytest.mark.parametrize("lost_at", ["begin", "end"])
@pytest.mark.parametrize("failure", [None, InputError("no images"), RuntimeError("no memory")], ids=repr)
def test_a_server_that_is_lost_costs_the_record_of_a_step_alone(
    lost_at: str, failure: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def step(number: int) -> int:
        calls.append(number)
        if failure is not None:
            raise failure
        return 2 * number

    def engine(self: Task[[int], int], number: int) -> int:
        """Prefect's, with a server that is gone before the step, or when its outcome is to be reported."""
        with suppress(InputError, RuntimeError):
            if lost_at == "end":
                self.fn(number)
        raise LOST

    monkeypatch.setattr(Task, "__call__", engine)
    outcome: Any
    try:
        outcome = repeatable(step)(21)
    except Exception as error:
        outcome = error
    assert outcome == (42 if failure is None else failure)
    assert calls == [21], "the work is done once"


SECRET = "secret-that-must-not-appear"


@pytest.mark.parametrize("url", [f"s3://AKIA:{SECRET}@bucket/store", f"s3://bucket/store?secret={SECRET}"])
def test_no_flow_is_started_with_a_secret_among_its_parameters(url: str) -> None:
    # There is no server in this test: asking for one would take minutes, and end in another error.
    parameters = {"config": TrainConfig(store=url), "cluster": ClusterConfig()}
    with pytest.raises(
        ConfigError, match=r"s3://(\*\*\*@bucket/store|bucket/store\?\*\*\*): leave"
    ) as caught:
        launch("train", parameters, None)
    assert SECRET not in str(caught.value)


def test_secrets_are_found_anywhere_and_plain_urls_pass() -> None:
    refuse_credentials({"config": TrainConfig(store="s3://bucket/store"), "cluster": ClusterConfig()})
    with pytest.raises(ConfigError):
        refuse_credentials({"config": {"steps": ["memory://a", (f"gs://{SECRET}@bucket/store",)]}})


def test_sets_what_is_missing_or_empty_and_nothing_else() -> None:
    environ = {"DO_NOT_TRACK": "0", "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "", "HOME": "/home/ada"}
    environment.prepare(environ)
    assert environ["DO_NOT_TRACK"] == "0"
    assert environ["HOME"] == "/home/ada"
    assert environ["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == "30"
    assert environ["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert environ.keys() == {"HOME", *environment.ALWAYS}


def test_prefect_reads_these_settings_under_the_names_used_here(tmp_path: Path) -> None:
    """A renamed setting would be ignored without a word: ask Prefect itself, in a process of its own."""
    script = """
import json, os
import topline.flows
from topline.flows import environment
environment.prepare(os.environ, environment.COMMAND_LINE)
from prefect.settings import get_current_settings
s = get_current_settings()
print(json.dumps([
    s.server.analytics_enabled, s.server.ephemeral.startup_timeout_seconds, s.flows.heartbeat_frequency,
    s.api.request_timeout, s.client.max_retries, s.logging.config_path.name, str(s.home),
]))
"""
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PREFECT_HOME": str(tmp_path / "prefect")}
    ran = run_program([sys.executable, "-c", script], env=environ, check=True)
    assert json.loads(ran.stdout) == [False, 180, 30, 10.0, 3, "logging.yml", str(tmp_path / "prefect")]


def test_a_home_that_cannot_be_written_is_one_sentence_before_anything_starts(tmp_path: Path) -> None:
    environment.require_home({"PREFECT_HOME": str(tmp_path / "a" / "b")})
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(FlowServerError, match=r"file/prefect, which cannot be written .*PREFECT_HOME"):
        environment.require_home({"PREFECT_HOME": str(tmp_path / "file" / "prefect")})


def test_whoever_serves_is_not_sent_to_an_option_of_other_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "file" / "prefect"))
    said = {}
    for name in ("serve", "train"):
        with pytest.raises(FlowServerError) as refused:
            run_flow(name, {})
        said[name] = str(refused.value)
    mend = "file/prefect, which cannot be written (Not a directory): set PREFECT_HOME to a folder that"
    assert mend in said["serve"]
    assert (said["serve"].count("--flow"), said["train"].count("--flow")) == (0, 1)


def test_nobody_else_reads_prefects_database(tmp_path: Path) -> None:
    home = tmp_path / "prefect"
    environment.require_home({"PREFECT_HOME": str(home)})
    assert (home.stat().st_mode & 0o777, (home / "prefect.db").stat().st_mode & 0o777) == (0o700, 0o600)
    for name in ("prefect.db", "prefect.db-wal"):
        (home / name).write_text("")
        (home / name).chmod(0o644)
    environment.require_home({"PREFECT_HOME": str(home)})
    assert {file.stat().st_mode & 0o777 for file in home.iterdir()} == {0o600}
    elsewhere = tmp_path / "elsewhere"
    environment.require_home({"PREFECT_HOME": str(elsewhere), "PREFECT_API_URL": "http://server/api"})
    assert list(elsewhere.iterdir()) == []


def test_the_package_prepares_the_environment_before_prefect_is_there() -> None:
    script = "import sys; from topline.flows import environment, runners; assert 'prefect' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=600)


@pytest.mark.parametrize("period", [timedelta(hours=2), timedelta(days=30)])
def test_the_server_of_a_schedule_forgets_runs_and_events(
    monkeypatch: pytest.MonkeyPatch, period: timedelta
) -> None:
    for name, value in environment.remembering({}, period).items():
        monkeypatch.setenv(name, value)
    vacuum = ServerServicesDBVacuumSettings()
    assert vacuum.enabled_vacuum_types >= {"flow_runs", "events"}
    assert vacuum.retention_period == period
    assert ServerEventsSettings().retention_period == min(period, timedelta(days=7))


def test_what_the_user_set_of_the_server_stays() -> None:
    given = {"PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": "86400", "OTHER": "1"}
    assert environment.remembering(given, timedelta(days=30)).items() >= given.items()
