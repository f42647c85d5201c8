"""A store that is pruned again and again while a training reads it and a dashboard shows it."""

from __future__ import annotations

import signal
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from tests.chaos.harness import FREE, TOL, Chaos, Process, until
from tests.free_ports import free_port
from tests.pipeline.small_data import make_features, make_split, write_dataset
from topline.storage.models import list_models
from topline.storage.retention import Pruned, RetentionPolicy, prune
from topline.storage.stores import open_store

#: Pages that are there all the time, and one that goes when its model goes.
STAYING = (
    "/",
    "/api/parts",
    "/metrics",
    "/health",
    "/runs/r0001",
    "/api/runs/r0001",
    "/api/runs/r0001/parts",
)
GOING = "/models/m0001"
PRUNINGS = 4


class Reader:
    """Asks a dashboard for its pages, one after the other, until it is told to stop."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"
        self._stop = threading.Event()
        self.rounds = 0
        self.answers: Counter[tuple[str, int]] = Counter()

    def status(self, path: str) -> int:
        try:
            with urllib.request.urlopen(self._address + path, timeout=120) as answer:
                answer.read()
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Ask from a thread until the block ends."""

        def ask() -> None:
            while not self._stop.is_set():
                for path in (*STAYING, GOING):
                    self.answers[path, self.status(path)] += 1
                self.rounds += 1

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def answers_now(self) -> bool:
        try:
            return self.status("/health") > 0
        except OSError:
            return False


def test_neither_a_training_nor_a_dashboard_fails(chaos: Chaos) -> None:
    """The training's run and dataset are the oldest of all: but for their reader they would go first."""
    store = open_store(chaos.store)
    long = chaos.train(*FREE, "--checkpoint-seconds", 0.3, "--tol", 1e-9)
    chaos.wait_for_rounds(5)
    port = free_port()
    go = chaos.folder / "go"
    go.touch()
    words = ("dashboard", "--store", chaos.store, "--port", port)
    dashboard = Process("topline", words, {"CHAOS_GO": str(go)}, chaos.folder / "dashboard")
    reader, done = Reader(port), list[Pruned]()
    try:
        until(reader.answers_now, "an answer of the dashboard")
        with reader.asking():
            for number in range(PRUNINGS):
                X, labels = make_features(2000, 16, 5, seed=number)
                write_dataset(store, X, labels, make_split(2000), m=5, key=f"newer {number}")
                assert chaos.train(*FREE, "--tol", 0.5).wait().code == 0
                trained, asked = len(chaos.rounds()), reader.rounds
                done.append(prune(store, RetentionPolicy(keep=1, days=0.0), datetime.now(UTC)))
                until(lambda trained=trained: len(chaos.rounds()) > trained, "another round")
                until(lambda asked=asked: reader.rounds > asked + 1, "a whole round of pages")
    finally:
        dashboard.end()
    long.send(signal.SIGINT)
    ended = chaos.resume(long.wait(), "--tol", TOL)
    assert {status for path, status in reader.answers.elements() if path in STAYING} == {200}, reader.answers
    assert {status for path, status in reader.answers.elements() if path == GOING} == {200, 404}
    assert "Traceback" not in dashboard.err.read_text()
    kinds = Counter(item.kind for one in done for item in one.gone)
    assert kinds["model"] == PRUNINGS - 1, "all but the newest"
    assert kinds["dataset"] >= PRUNINGS - 1
    # The run was to go each time, and its data, but they were in use.
    assert all("r0001" in {item.name for item in one.in_use} for one in done), done[0].in_use
    assert [model.id for model in list_models(store)][:1] == [f"m{PRUNINGS:04d}"]
    chaos.conclude(ended)
