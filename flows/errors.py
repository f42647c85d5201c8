"""Errors between a flow and Prefect's server."""

from __future__ import annotations

from topline.pipeline.errors import PipelineError


class FlowServerError(PipelineError, ConnectionError):
    """Prefect's server did not start, or does not answer."""
