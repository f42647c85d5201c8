"""Prefect's settings, put into the environment before it is first imported.

Prefect reads its settings when it is imported, so the package `topline.flows` calls `prepare` before any of
its modules can import Prefect.  Nothing that the user has set is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from pathlib import Path
from tempfile import TemporaryFile

from topline.flows.errors import FlowServerError

# Everywhere: no telemetry; a first start of the embedded server on a fresh database takes longer than the
# 20 s that Prefect allows; a heartbeat often enough for an automation to notice a dead run.
ALWAYS: Mapping[str, str] = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
}

# Under the command line, which shows its own progress and answers with one sentence: Prefect's log goes to
# the server only, and a server that stops answering is given up within a minute instead of six.
COMMAND_LINE: Mapping[str, str] = {
    "PREFECT_LOGGING_CONFIG_PATH": str(Path(__file__).with_name("logging.yml")),
    "PREFECT_API_REQUEST_TIMEOUT": "10",
    "PREFECT_CLIENT_MAX_RETRIES": "1",
}

# Under `topline serve`, whose runs log to the server only.
SERVED: Mapping[str, str] = {"PREFECT_LOGGING_CONFIG_PATH": COMMAND_LINE["PREFECT_LOGGING_CONFIG_PATH"]}


def prepare(environ: MutableMapping[str, str], settings: Mapping[str, str] = ALWAYS) -> None:
    """Set what is not set yet; empty values count as not set."""
    for name, value in settings.items():
        if not environ.get(name):
            environ[name] = value


def require_home(environ: Mapping[str, str]) -> None:
    """Make the folder where Prefect keeps its files; `FlowServerError` where that cannot be written.

    Prefect itself would start its embedded server there again and again, until its time limit.
    """
    home = Path(environ.get("PREFECT_HOME") or "~/.prefect").expanduser()
    try:
        home.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=home):
            return
    except OSError as error:
        raise FlowServerError(
            f"Prefect keeps its files in {home}, which cannot be written ({error.strerror}):"
            " set PREFECT_HOME to another folder, or run without --flow"
        ) from error
