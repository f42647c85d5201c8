"""A flow that ends whoever serves it, and itself never."""

from __future__ import annotations

import os
import signal
import threading

from prefect import flow


@flow(name="endless")
def endless(number: int) -> None:
    """Send the process that runs this one as a child a signal, and wait for what never comes."""
    # Prefect asks before it kills: what asks for more time than it grants tells the server nothing.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.kill(os.getppid(), number)
    threading.Event().wait()
