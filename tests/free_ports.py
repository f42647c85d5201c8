"""Ports for programs that are started later, which nobody is given by chance in the meantime."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress


def free_port() -> int:
    """Return a free port of the loopback interface.

    It lies below those that the system gives to connections and to whoever asks for any: there another
    program of a busy machine may have it before ours starts.
    """
    while True:
        port = secrets.choice(range(20_000, 32_000))
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
