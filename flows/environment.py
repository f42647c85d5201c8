"""Prefect's settings, put into the environment before it is first imported.

Prefect reads its settings when it is imported, so the package `topline.flows` calls `prepare` before any of
its modules can import Prefect.  Nothing that the user has set is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryFile

from topline.pipeline.errors import PipelineError


class FlowServerError(PipelineError, ConnectionError):
    """Prefect's server did not start, or does not answer."""


# Everywhere: no telemetry; a first start of the embedded server on a fresh database takes longer than the
# 20 s that Prefect allows; a heartbeat often enough for an automation to notice a dead run.
ALWAYS: Mapping[str, str] = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    # The pipeline's lines go to the page of the run that they are of; those of other threads are of none.
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}

# Under the command line, which shows its own progress and answers with one sentence: Prefect's log goes to
# the server only, and a request that a server leaves without an answer is given up within a minute instead of
# six.  A busy server with SQLite answers 503 for seconds on end, so that one more try would be too few.
COMMAND_LINE: Mapping[str, str] = {
    "PREFECT_LOGGING_CONFIG_PATH": str(Path(__file__).with_name("logging.yml")),
    "PREFECT_API_REQUEST_TIMEOUT": "10",
    "PREFECT_CLIENT_MAX_RETRIES": "3",
}

# Under `topline serve`, whose runs log to the server only.
SERVED: Mapping[str, str] = {
    "PREFECT_LOGGING_CONFIG_PATH": COMMAND_LINE["PREFECT_LOGGING_CONFIG_PATH"],
}

# Most of what a run leaves in the database are events; Prefect keeps them for a week by default.
_EVENTS_KEPT = timedelta(days=7)


def prepare(environ: MutableMapping[str, str], settings: Mapping[str, str] = ALWAYS) -> None:
    """Set what is not set yet; empty values count as not set."""
    for name, value in settings.items():
        if not environ.get(name):
            environ[name] = value


def remembering(environ: Mapping[str, str], period: timedelta) -> dict[str, str]:
    """Return the environment of a server that forgets runs after `period`, events after a week at most."""
    settings = {
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
        "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": f"{period.total_seconds():.0f}",
        "PREFECT_SERVER_EVENTS_RETENTION_PERIOD": f"PT{min(period, _EVENTS_KEPT).total_seconds():.0f}S",
    }
    found = dict(environ)
    prepare(found, settings)
    return found


# Where one of these is set, runs are recorded in another database.
_ELSEWHERE = (
    "PREFECT_API_URL",
    "PREFECT_SERVER_DATABASE_CONNECTION_URL",
    "PREFECT_API_DATABASE_CONNECTION_URL",
)


def require_home(environ: Mapping[str, str], otherwise: str = "") -> None:
    """Make the folder where Prefect keeps its files, its database readable by nobody else.

    `FlowServerError` where that cannot be written, which may name what to do `otherwise` than set another.
    Prefect itself would start its embedded server there again and again, until its time limit.
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
    """Let nobody else read Prefect's SQLite database, which names folders, options and errors.

    SQLite gives its journals the mode of the database, which it finds here, empty, the first time.
    """
    place.touch(mode=0o600)
    for file in (place, place.with_name(f"{place.name}-wal"), place.with_name(f"{place.name}-shm")):
        if file.exists() and file.stat().st_mode & 0o077:
            file.chmod(0o600)
