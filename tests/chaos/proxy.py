"""A connection that can be cut, slowed down or emptied: a TCP proxy in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any, Self


class Proxy:
    """Passes connections on to `port` of this machine, until it is told otherwise."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._delay = 0.0
        self._swallows = False
        self._refuses = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._ask(asyncio.start_server(self._connect, "127.0.0.1", 0))
        self.port = int(self._server.sockets[0].getsockname()[1])
        self.address = f"tcp://127.0.0.1:{self.port}"

    def cut(self, *, refuse: bool = False) -> None:
        """Close every connection, and let none be made where `refuse`."""
        self._refuses = refuse
        self._ask(self._close_all())

    def swallow(self) -> None:
        """Take what is sent and pass nothing on: a network that is gone without a word."""
        self._swallows = True

    def slow_down(self, seconds: float) -> None:
        """Pass everything on so much later."""
        self._delay = seconds

    def close(self) -> None:
        self.cut(refuse=True)
        self._loop.call_soon_threadsafe(self._server.close)
        self._ask(self._end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, question: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(question, self._loop).result(10)

    async def _close_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _end_tasks(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        try:
            there = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, there[1]}
        await asyncio.gather(self._pass(reader, there[1]), self._pass(there[0], writer))
        self._writers -= {writer, there[1]}

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if self._swallows:
                    continue
                if self._delay:
                    await asyncio.sleep(self._delay)
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError, RuntimeError):
            writer.close()
