"""Start a flow from this process, on the configured server or on Prefect's embedded one."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextvars import copy_context
from types import MappingProxyType
from typing import Any, TypeVar

import httpx
from prefect import Flow, tags
from prefect.client.orchestration import get_client
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from pydantic import BaseModel

from topline.flows.definitions import evaluate, extract, run, sweep, train
from topline.flows.environment import FlowServerError
from topline.flows.reporting import Caller, called_by
from topline.flows.retraining import retrain
from topline.pipeline.errors import ConfigError
from topline.pipeline.progress import Progress, begin
from topline.storage.stores import masked

logger = logging.getLogger(__name__)


def refuse_credentials(parameters: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a URL with credentials among the parameters, before they are recorded."""
    for text in _texts(parameters):
        if masked(text) != text:
            raise ConfigError(
                f"{masked(text)}: leave credentials and options out of URLs, which Prefect's server would"
                " keep in clear; set them in the environment"
            )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, BaseModel):
        yield from _texts(dict(value))
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part)


FLOWS: Mapping[str, Flow[..., Any]] = MappingProxyType(
    {"extract": extract, "train": train, "evaluate": evaluate, "run": run, "retrain": retrain, "sweep": sweep}
)

Result = TypeVar("Result")

HEALTH_SECONDS = 10.0

# Exceptions of Prefect's client if its server refuses, hangs or is gone.
SERVER_ERRORS = (httpx.HTTPError, PrefectException, ConcurrencySlotAcquisitionError, RuntimeError)


def launch(name: str, parameters: Mapping[str, Any], progress: Progress | None) -> Any:
    """Run the flow `name` and return its result; see `topline.flows.runners.run_flow`."""
    refuse_credentials(parameters)
    server = PREFECT_API_URL.value()
    begin(progress, "connect to Prefect" if server else "start Prefect's embedded server")
    require_server(server)
    # Keep Prefect's log thread from writing about a lost server into the progress display.
    logging.raiseExceptions = False
    caller = Caller(progress)
    try:
        with called_by(caller), tags("topline"):
            return FLOWS[name](**parameters)
    except SERVER_ERRORS as error:
        if error is caller.error:
            raise
        if caller.error is not None:
            # Prefect could not even report it; the job's own error comes first.
            raise caller.error from caller.error.__cause__
        if not caller.finished:
            raise FlowServerError(
                f"{_server_name(server)} failed before the work began ({_brief(error)}): look at its log, "
                "or run without --flow"
            ) from error
        logger.warning(
            "%s stopped answering, so it does not record the end of this flow run; the result is stored.",
            _server_name(server),
        )
        return caller.result


def require_server(server: str | None) -> None:
    """Return once the configured or embedded server answers; raise `FlowServerError`, which names it."""
    try:
        problem = _without_interrupts(_health_problem)
    except (*SERVER_ERRORS, OSError, ValueError) as error:
        problem = error
    if problem is not None:
        fix = (
            "start it (prefect server start) or unset PREFECT_API_URL"
            if server
            else "`topline doctor` says why, and without --flow no server is needed"
        )
        raise FlowServerError(
            f"{_server_name(server)} does not answer ({_brief(problem)}): {fix}"
        ) from problem


def _health_problem() -> Exception | None:
    """Connect, which starts the embedded server if none is configured; return any error."""
    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
        get_client(httpx_settings={"timeout": HEALTH_SECONDS}, sync_client=True) as client,
    ):
        return client.api_healthcheck()


def _without_interrupts(function: Callable[[], Result]) -> Result:
    """Call `function` in a thread whose child processes ignore Ctrl-C, and wait for it.

    Otherwise the embedded server would end before the interrupted run is recorded.
    """
    outcome: Future[Result] = Future()

    def call() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            outcome.set_result(function())
        except Exception as error:  # noqa: BLE001  it is raised again in the thread that waits
            outcome.set_exception(error)

    threading.Thread(target=copy_context().run, args=(call,), daemon=True).start()
    return outcome.result()


def _server_name(server: str | None) -> str:
    return f"Prefect's server at {server}" if server else "Prefect's embedded server"


def _brief(error: BaseException) -> str:
    """Return an error's kind and the first line of its message, to which Prefect appends its log."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
