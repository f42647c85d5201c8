"""Ports for programs that are started later, which nobody is given by chance in the meantime."""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import suppress

#: Ports that this process has given, whose programs may not listen yet.
_given: set[int] = set()
#: Processes that test side by side, each with ports of its own.
_PROCESSES = 8


def free_port() -> int:
    """Return a free port of the loopback interface.

    It lies below those that the system gives to connections and to whoever asks for any: there another
    program of a busy machine may have it before ours starts.  No call gives a port again, nor one that
    another process of pytest-xdist may give.
    """
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _PROCESSES
    while True:
        port = secrets.choice(range(20_000 + own, 32_000, _PROCESSES))
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port
