"""Keeps what workers hold of a run while its coordinator is busy with other things."""

from __future__ import annotations

import logging
import threading
import weakref

from topline.pipeline.cluster import worker_blocks
from topline.pipeline.cluster.calls import Call, WorkerCalls
from topline.pipeline.cluster.placement import BlockPlacement

logger = logging.getLogger(__name__)


class LeaseRenewal:
    """Renews the leases of a run on all workers that hold blocks, several times a lease.

    It goes on until `stop`, or until nobody has the blocks' places any more.  Nothing waits for the workers:
    whoever is lost is found out by the next request.
    """

    def __init__(self, calls: WorkerCalls, places: BlockPlacement, lease: float) -> None:
        self._over = threading.Event()
        arguments = (self._over, calls, weakref.ref(places), lease / 4)
        threading.Thread(target=_renew, args=arguments, name="topline-leases", daemon=True).start()

    def stop(self) -> None:
        """Let the leases run out."""
        self._over.set()


def _renew(
    over: threading.Event, calls: WorkerCalls, places: weakref.ref[BlockPlacement], seconds: float
) -> None:
    while not over.wait(seconds):
        found = places()
        if found is None:
            return
        try:
            begun = [calls.begin(Call(worker, worker_blocks.renew, (found.run,))) for worker in found.owned]
        except Exception as error:  # noqa: BLE001 - the connection is gone, which the next request says
            logger.info("leases are not renewed: %s", error)
            return
        del found
        over.wait(min(seconds, 1.0))
        del begun
