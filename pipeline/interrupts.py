"""Ctrl-C and SIGTERM as a wish that a loop can look at."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any


class Terminated(KeyboardInterrupt):
    """SIGTERM, which stops a command wherever Ctrl-C does."""

    def __init__(self) -> None:
        super().__init__("stopped by SIGTERM")


@dataclass
class StopFlag:
    """Set once somebody has asked this process to stop, by the signal `number`."""

    number: int | None = None

    def __bool__(self) -> bool:
        return self.number is not None

    @property
    def reason(self) -> str:
        """What asked for the stop."""
        return "a stop request" if self.number is None else signal.Signals(self.number).name


@contextmanager
def stop_on_signals() -> Iterator[StopFlag]:
    """Turn the first SIGINT or SIGTERM into a set flag, in the main thread; a second one acts as usual."""
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
        flag.number = number
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


def _terminate(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
    raise Terminated


@contextmanager
def terminating() -> Iterator[None]:
    """Let SIGTERM raise `Terminated`, whoever handled it; outside the main thread it does what it did."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def terminate_as_interrupt() -> StopFlag:
    """Let SIGTERM raise `Terminated` unless it is handled; return a flag that says whether it came.

    An interrupt that meets a destructor, in which Python prints and forgets it, is raised again after it.
    """
    flag = StopFlag()

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
        flag.number = number
        signal.signal(number, signal.SIG_DFL)
        raise Terminated

    main = threading.current_thread() is threading.main_thread()
    if main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, stop)
    if main:
        sys.unraisablehook = _raise_again
    return flag


def _raise_again(lost: sys.UnraisableHookArgs) -> None:
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    terminated = issubclass(lost.exc_type, Terminated)
    signal.signal(signal.SIGALRM, _terminate if terminated else signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
