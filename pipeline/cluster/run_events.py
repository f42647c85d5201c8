"""Events that tell a Dask scheduler which run goes on, for the page that it shows."""

from __future__ import annotations

import logging

from distributed import Client

logger = logging.getLogger(__name__)

TOPIC = "topline-runs"


def announce(client: Client, store_url: str, run_id: str) -> None:
    """Tell the scheduler which run begins, for its page; where that fails, nothing is lost."""
    try:
        client.log_event(TOPIC, {"store": store_url, "run": run_id})
    except (OSError, ValueError, RuntimeError) as error:
        logger.debug("the scheduler's page will not show run %s: %s", run_id, error)
