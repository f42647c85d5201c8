"""Prefect's runner of scheduled flows, ended by SIGTERM as orderly as by Ctrl-C."""

from __future__ import annotations

import asyncio
from typing import Any

from prefect.runner import Runner


class OrderlyRunner(Runner):
    """A runner whose loop SIGTERM cancels.

    Prefect's own handler leaves the loop by an exception in the middle, and asyncio reports it at length.
    """

    _cancel: Any = None
    _terminated = False

    def run(self) -> None:
        """Serve until SIGTERM, then return; Ctrl-C is raised as everywhere."""
        asyncio.run(self._served())

    def handle_sigterm(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002 - the signature of Prefect's
        """Take the signal, for which `start` installs this."""
        self._terminated = True
        self._cancel()

    async def _served(self) -> None:
        loop, serving = asyncio.get_running_loop(), asyncio.ensure_future(self.start())
        self._cancel = lambda: loop.call_soon_threadsafe(serving.cancel)
        try:
            await serving
        except asyncio.CancelledError:
            if not self._terminated:
                raise
