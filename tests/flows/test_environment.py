"""What is set before Prefect is imported, and what is left as the user set it."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from prefect.settings.models.server.events import ServerEventsSettings
from prefect.settings.models.server.services import ServerServicesDBVacuumSettings

from topline.flows import environment
from topline.flows.environment import FlowServerError
from topline.flows.runners import run_flow


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
    ran = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True, timeout=600
    )
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
