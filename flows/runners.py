"""Entry point of the command line: run a pipeline function as its Prefect flow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from topline.flows import environment

if TYPE_CHECKING:
    from topline.pipeline.progress import Progress


def run_flow(name: str, parameters: Mapping[str, Any], progress: Progress | None = None) -> Any:
    """Run the flow `name`, one of `topline.flows.launching.FLOWS`, and return the plain function's result.

    `parameters` are its keyword arguments without `progress` and `client`.  The pipeline's exceptions are
    raised unchanged; raises `FlowServerError` (a `PipelineError`) if Prefect's server does not answer.
    """
    # Serving a schedule requires Prefect.
    otherwise = "" if name == "serve" else ", or run without --flow"
    environment.require_home(os.environ, otherwise)
    if name == "serve":
        # Its runs log to the server only.
        log = "PREFECT_LOGGING_CONFIG_PATH"
        environment.prepare(os.environ, {log: environment.COMMAND_LINE[log]})
        from topline.flows.serving import Serving, serve_retraining

        how = {name: value for name, value in parameters.items() if name not in ("config", "cluster")}
        return serve_retraining(parameters["config"], parameters["cluster"], Serving(**how), progress)
    environment.prepare(os.environ, environment.COMMAND_LINE)
    # Import only now: importing Prefect reads the environment.
    from topline.flows.launching import launch

    return launch(name, parameters, progress)
