"""Ctrl-C and SIGTERM as a wish that a loop can look at."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Terminated(KeyboardInterrupt):
    """SIGTERM, which stops a command wherever Ctrl-C does."""

    def __init__(self) -> None:
        super().__init__("stopped by SIGTERM")


class StopFlag:
    """Set once somebody has asked this process to stop."""

    def __init__(self) -> None:
        self._signal: int | None = None

    def __bool__(self) -> bool:
        return self._signal is not None

    def ask(self, number: int) -> None:
        """Take note of the signal `number`."""
        self._signal = number

    @property
    def reason(self) -> str:
        """What asked for the stop."""
        return "a stop request" if self._signal is None else signal.Signals(self._signal).name


@contextmanager
def stop_on_signals() -> Iterator[StopFlag]:
    """Turn the first SIGINT or SIGTERM into a set flag, in the main thread; a second one acts as usual."""
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
        flag.ask(number)
        signal.signal(number, before[number])

    for number in before:
        signal.signal(number, note)
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def whole_interrupts() -> Iterator[None]:
    """Raise the KeyboardInterrupt of which a library has made another error; ours stay what they are.

    Numba's dispatcher goes on after an interrupt, and CPython makes a SystemError of it; a module that was
    interrupted while it was imported may refuse to be imported again.
    """
    try:
        yield
    except Exception as error:
        cause: BaseException | None = None if type(error).__module__.startswith("topline.") else error
        while cause is not None and not isinstance(cause, KeyboardInterrupt):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise cause from None


@contextmanager
def terminating() -> Iterator[None]:
    """Let SIGTERM raise `Terminated`, whoever handled it; outside the main thread it does what it did."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def terminate_as_interrupt() -> StopFlag:
    """Let SIGTERM raise `Terminated` unless it is handled; return a flag that says whether it came."""
    flag = StopFlag()

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
        flag.ask(number)
        signal.signal(number, signal.SIG_DFL)
        raise Terminated

    if (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    ):
        signal.signal(signal.SIGTERM, stop)
    return flag
