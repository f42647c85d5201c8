"""Prefect's runner of scheduled flows, ended by SIGTERM as orderly as by Ctrl-C."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from prefect.runner import Runner


class OrderlyRunner(Runner):
    """A runner whose loop SIGTERM cancels, and which knows afterwards what it cut off.

    Prefect's own handler leaves the loop by an exception in the middle, and asyncio reports it at length.
    What the cancelled loop was running Prefect kills, and leaves as running on the server.
    """

    #: Flow runs that were under way when the serving ended.
    interrupted: frozenset[UUID] = frozenset()
    #: What ended the serving.
    ended_by = "an error"

    _cancel: Any = None
    _terminated = False

    def run(self) -> None:
        """Serve until SIGTERM, then return; Ctrl-C is raised as everywhere."""
        try:
            asyncio.run(self._served())
            self.ended_by = "SIGTERM"
        except KeyboardInterrupt:
            self.ended_by = "Ctrl-C"
            raise

    def handle_sigterm(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002 - the signature of Prefect's
        """Take the signal, for which `start` installs this."""
        self._terminated = True
        self._cancel()

    async def __aexit__(self, *exc_info: object) -> None:
        """Leave as Prefect does, which ends the processes of the runs."""
        self.interrupted = frozenset(self._scheduled_run_poller._submitting_flow_run_ids)
        await super().__aexit__(*exc_info)

    async def _served(self) -> None:
        loop, serving = asyncio.get_running_loop(), asyncio.ensure_future(self.start())
        self._cancel = lambda: loop.call_soon_threadsafe(serving.cancel)
        try:
            await serving
        except asyncio.CancelledError:
            if not self._terminated:
                raise
