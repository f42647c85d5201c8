"""Prefect's settings, put into the environment before Prefect is first imported.

Prefect reads its settings on import, so `topline.flows` calls `prepare` before its modules can import
Prefect. The user's own settings stay.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryFile

from topline.pipeline.errors import PipelineError


class FlowServerError(PipelineError, ConnectionError):
    """Prefect's server did not start, or does not answer."""


# Everywhere: no telemetry; more than Prefect's 20 s for the embedded server's first start on a fresh
# database; heartbeats frequent enough for an automation to notice a dead run.
ALWAYS: Mapping[str, str] = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    # The pipeline's log lines go to the page of their run; those of other threads to none.
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}

# For the command line, which has its own progress and messages: Prefect's log goes to the server only, and a
# request without an answer is given up within a minute instead of six.  A busy server with SQLite answers 503
# for seconds, so one retry would be too few.
COMMAND_LINE: Mapping[str, str] = {
    "PREFECT_LOGGING_CONFIG_PATH": str(Path(__file__).with_name("logging.yml")),
    "PREFECT_API_REQUEST_TIMEOUT": "10",
    "PREFECT_CLIENT_MAX_RETRIES": "3",
}

# Most of a run's data in the database are events; Prefect keeps them for a week by default.
_EVENTS_KEPT = timedelta(days=7)


def prepare(environ: MutableMapping[str, str], settings: Mapping[str, str] = ALWAYS) -> None:
    """Set variables that are unset or empty."""
    for name, value in settings.items():
        if not environ.get(name):
            environ[name] = value


def remembering(environ: Mapping[str, str], period: timedelta) -> dict[str, str]:
    """Return the environment of a server that forgets runs after `period`, events after at most a week."""
    found = dict(environ)
    settings = {
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
        "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": f"{period.total_seconds():.0f}",
        "PREFECT_SERVER_EVENTS_RETENTION_PERIOD": f"PT{min(period, _EVENTS_KEPT).total_seconds():.0f}S",
    }
    prepare(found, settings)
    return found


# Any of these variables selects another database for the runs.
_ELSEWHERE = (
    "PREFECT_API_URL",
    "PREFECT_SERVER_DATABASE_CONNECTION_URL",
    "PREFECT_API_DATABASE_CONNECTION_URL",
)


def require_home(environ: Mapping[str, str], otherwise: str = "") -> None:
    """Create the folder of Prefect's files, with a database that only the user can read.

    Raises `FlowServerError` if it cannot be written, with the alternative `otherwise` to setting another one:
    Prefect would start its embedded server there again and again, until its time limit.
    """
    home = Path(environ.get("PREFECT_HOME") or "~/.prefect").expanduser()
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with TemporaryFile(dir=home):
            if not any(environ.get(name) for name in _ELSEWHERE):
                _keep_database_private(home / "prefect.db")
    except OSError as error:
        raise FlowServerError(
            f"Prefect keeps its files in {home}, which cannot be written ({error.strerror}):"
            f" set PREFECT_HOME to a folder that you may write to{otherwise}"
        ) from error


def _keep_database_private(place: Path) -> None:
    """Make Prefect's database private to the user; SQLite copies its mode to its journals."""
    place.touch(mode=0o600)
    for file in (place, place.with_name(f"{place.name}-wal"), place.with_name(f"{place.name}-shm")):
        if file.exists() and file.stat().st_mode & 0o077:
            file.chmod(0o600)
