"""A world that owns time: processes take turns, call by call, as a plan says.

Each simulated thread is a greenlet; it hands on only in `World.step`, which every call on a store or the
clock passes.  So a plan is one history, however often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from greenlet import getcurrent, greenlet

#: Seconds that a call takes, and the wall clock's time at the beginning.
TICK, EPOCH = 0.01, 1.6e9
MOST_STEPS = 40_000
_FOREVER = float("inf")


class Killed(BaseException):
    """The process of this thread is no more; none of its calls has an effect from here on."""


class Violation(Exception):
    """An invariant does not hold."""


@dataclass(eq=False)
class Process:
    """A process: `faults` are met by its calls of these numbers, `offset` is how wrong its clock goes."""

    name: str
    faults: Mapping[int, float] = field(default_factory=dict)
    calls: int = 0
    dead: bool = False
    stopped_until: float = 0.0
    away: float = 0.0
    offset: float = 0.0
    number: int = 1
    #: Whether it was shown an older set of keys than there was.
    listed_late: bool = False
    #: Whether its listings are complete, as pruning needs them.
    lists_all: bool = False
    descriptors: dict[int, Any] = field(default_factory=dict)
    #: Faults that it does not meet.
    spared: frozenset[str] = frozenset()


@dataclass(eq=False)
class Thread:
    """A thread of a process: it may run from `wake` on, or once `ready` says so."""

    process: Process
    run: Callable[[], None]
    main: bool = False
    wake: float = 0.0
    ready: Callable[[], bool] | None = None
    done: bool = False
    life: greenlet | None = None

    def may_run(self, now: float) -> bool:
        if self.process.dead:
            return True
        awake = self.wake <= now or (self.ready is not None and self.ready())
        return awake and self.process.stopped_until <= now


class World:
    """The time, the threads, and what happened; `switches` are steps at which somebody else has a turn."""

    def __init__(self, switches: Sequence[tuple[int, float]]) -> None:
        self.now = 0.0
        self.steps = 0
        self.trace: list[tuple[str, str, str]] = []
        self.faults: Counter[str] = Counter()
        self.violation: str | None = None
        self.quiet = Process("inspector")
        #: All that ever lived here, and what they store on.
        self.processes: list[Process] = [self.quiet]
        self.disk: Any = None
        self.bucket: Any = None
        #: Whether two versions of the program meet.
        self.mixed = False
        #: Seconds that a clock may jump by.
        self.skew = 2e7
        self.running: Thread | None = None
        self._switches = list(switches)
        self._threads: list[Thread] = []
        self._later: list[tuple[int, Callable[[], None]]] = []
        self._outside = getcurrent()
        self._event = 0
        self._arm()

    @property
    def process(self) -> Process:
        """Whose turn it is; between two acts the inspector's, whom nothing disturbs."""
        return self.quiet if self.running is None else self.running.process

    def wall(self) -> float:
        return EPOCH + self.now + self.process.offset

    def monotonic(self) -> float:
        return self.now

    def act(self, threads: Sequence[Thread]) -> None:
        """Let some threads run until all of their processes have ended."""
        self._threads, self._outside = list(threads), getcurrent()
        self.running = self._chosen()
        while (thread := self.running) is not None:
            thread.life = thread.life or greenlet(self._run)
            thread.life.switch(thread)
        self._later = []

    def spawn(self, run: Callable[[], None]) -> Thread:
        """Start another thread of the running process."""
        thread = Thread(self.process, run)
        self._threads.append(thread)
        return thread

    def later(self, steps: int, effect: Callable[[], None]) -> None:
        """Let something happen so many steps from now, whoever lives then."""
        self._later.append((self.steps + steps, effect))
        self._arm()

    def step(self, call: str, path: str) -> float | None:
        """Let a call of the running thread be made; returns the fault that it meets, None mostly."""
        if self.running is None:
            return None
        process = self.running.process
        if process.dead:
            raise Killed
        process.calls += 1
        self.steps += 1
        self.now += TICK
        self.trace.append((process.name, call, path))
        if self.steps >= self._event:
            self._happen()
        return process.faults.get(process.calls) if process.faults else None

    def strike(self, fault: float, kinds: Sequence[str]) -> str:
        """Let a fault happen to the running process, one of `kinds` or of what may happen at every call."""
        choices = (*kinds, *kinds, *_GENERAL)
        number = fault * len(choices)
        kind, share = choices[int(number)], number % 1.0
        process = self.process
        if kind in process.spared:
            return "spared"
        self.faults[kind] += 1
        self.trace[-1] = (*self.trace[-1][:2], f"{self.trace[-1][2]}  <- {kind}")
        if kind == "killed":
            self.kill(process)
            raise Killed
        if kind == "slow":
            process.away += 20.0 * share
            self.sleep(20.0 * share)
        elif kind == "stopped":
            process.away += 20.0 + 150.0 * share
            process.stopped_until = self.now + 20.0 + 150.0 * share
            self.pause(0.0)
        elif kind == "clock moved":
            process.offset += (share - 0.5) * self.skew
        elif kind == "power cut":
            for thread in self._threads:
                self.kill(thread.process)
            self.disk.crash(share)
            raise Killed
        return kind

    def kill(self, process: Process) -> None:
        process.dead = True
        process.descriptors.clear()

    def sleep(self, seconds: float) -> None:
        self.step("sleep", f"{seconds:g} s")
        self.pause(seconds)

    def pause(self, seconds: float, ready: Callable[[], bool] | None = None) -> None:
        """Wait so long, or until `ready`; others have their turns."""
        thread = self.running
        if thread is None:
            self.now += seconds
            return
        thread.wake, thread.ready = self.now + seconds, ready
        self._threads.append(self._threads.pop(self._threads.index(thread)))
        self._hand_on()
        # Who was let go by `ready` would otherwise be asleep again when its turn is taken.
        thread.wake, thread.ready = self.now, None
        if thread.process.dead:
            raise Killed

    def violated(self, what: str) -> None:
        """Note that an invariant does not hold, and end all processes."""
        if self.violation is None:
            self.violation = what
            for thread in self._threads:
                self.kill(thread.process)

    def _happen(self) -> None:
        due = [effect for step, effect in self._later if step <= self.steps]
        self._later = [(step, effect) for step, effect in self._later if step > self.steps]
        for effect in due:
            effect()
        turn = None
        while self._switches and self._switches[0][0] <= self.steps:
            turn = self._switches.pop(0)[1]
        self._arm()
        if self.steps > MOST_STEPS:
            self.violated("the processes do not come to an end")
        if turn is not None:
            self._hand_on(turn)
        if self.process.dead:
            raise Killed

    def _arm(self) -> None:
        events = [step for step, _ in self._later]
        events += [self._switches[0][0]] if self._switches else []
        self._event = min([*events, MOST_STEPS + 1])

    def _hand_on(self, turn: float | None = None) -> None:
        """Give the turn to a thread that may run, and wait for one's own."""
        me = self.running
        self.running = self._chosen(turn)
        if self.running is not me:
            self._outside.switch()

    def _chosen(self, turn: float | None = None) -> Thread | None:
        while self._threads:
            able = [thread for thread in self._threads if thread.may_run(self.now)]
            if turn is not None:
                others = [thread for thread in able if thread is not self.running]
                return others[int(turn * len(others))] if others else self.running
            if able:
                return able[0]
            wakes = (max(thread.wake, thread.process.stopped_until) for thread in self._threads)
            soonest = min(wakes)
            if soonest == _FOREVER:
                self.violated("all processes wait for one another")
            else:
                self.now = max(self.now, soonest)
        return None

    def _run(self, thread: Thread) -> None:
        """Be a simulated thread, from its first turn to its last."""
        try:
            thread.run()
        except Killed:
            pass
        except Violation as violation:
            self.violated(str(violation))
        except Exception as error:
            self.violated(f"{thread.process.name} met {type(error).__name__}: {error}")
        thread.done = True
        if thread.main:
            # With its main thread a process is gone, its daemons too.
            self.kill(thread.process)
        self._threads.remove(thread)
        self.running = self._chosen()


_GENERAL = ("slow", "stopped", "killed", "clock moved")


class Here:
    """The world that this process simulates, for what stands in the place of modules."""

    world: World
