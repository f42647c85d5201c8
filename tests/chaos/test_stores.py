"""Disks that fill, stores that refuse, and files that rot while a run reads and writes them."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.chaos.harness import FREE, KEPT, TOL, Chaos, Process, shorten, until
from tests.free_ports import free_port
from tests.pipeline.small_data import feature_files, make_features, make_split, write_dataset
from tests.small_disk import small_disk
from topline.storage.models import list_models
from topline.storage.retention import Pruned, RetentionPolicy, prune
from topline.storage.stores import open_store
from topline.storage.verification import verify_store

ENDLESS = ("--tol", 1e-9)


def hurt(path: Path, how: str, rng: random.Random) -> bytes:
    """Flip a bit of the file, cut it short or delete it; give what it was."""
    whole = path.read_bytes()
    place = rng.randrange(len(whole))
    if how == "flipped":
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << rng.randrange(8)]) + whole[place + 1 :])
    elif how == "cut":
        path.write_bytes(whole[:place])
    else:
        path.unlink()
    return whole


def damaged(store: Path) -> set[str]:
    return {finding.path for finding in verify_store(open_store(store)) if not finding.harmless}


@pytest.fixture
def disk(chaos: Chaos) -> Iterator[Path]:
    """A small file system of its own, with the store of the run in it."""
    with small_disk(chaos.folder / "disk", megabytes=8) as folder:
        try:
            shutil.move(chaos.store, folder / "store")
            chaos.store = folder / "store"
            yield folder
        finally:
            chaos.close()


@pytest.mark.parametrize("duals", ["kept", "free"])
def test_disk_full(chaos: Chaos, disk: Path, rng: random.Random, duals: str) -> None:
    job = chaos.train(*(KEPT if duals == "kept" else (*FREE, "--checkpoint-seconds", 0.3)), *ENDLESS)
    chaos.wait_for_rounds(rng.randrange(20, 60))
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    ended = job.wait()
    assert "no space is left" in ended.sentence
    assert not damaged(chaos.store), "what was stored is whole"
    ballast.unlink()
    chaos.conclude(chaos.resume(ended, "--tol", TOL))


def test_store_made_read_only(chaos: Chaos, rng: random.Random) -> None:
    job = chaos.train(*KEPT, *ENDLESS, powerless=True)
    chaos.wait_for_rounds(rng.randrange(20, 60))
    folders = [Path(folder) for folder, _, _ in os.walk(chaos.store)]
    for folder in folders:
        folder.chmod(0o555)
    try:
        ended = job.wait()
    finally:
        for folder in folders:
            if folder.is_dir():
                folder.chmod(0o755)
    assert "Permission denied" in ended.sentence
    chaos.conclude(chaos.resume(ended, "--tol", TOL))


@pytest.mark.parametrize("how", ["flipped", "deleted", pytest.param("cut", marks=pytest.mark.chaos_long)])
def test_chunk(chaos: Chaos, rng: random.Random, how: str) -> None:
    """In mid-run, of data that is read again in every pass: no number is made of it."""
    job = chaos.train(*FREE, *ENDLESS, "--cache-bytes", 0)
    chaos.wait_for_rounds(rng.randrange(10, 30))
    chunk = rng.choice(feature_files(chaos.store))
    whole = hurt(chunk, how, rng)
    ended = job.wait()
    assert chunk.name in ended.sentence or "rows" in ended.sentence
    assert str(chunk.relative_to(chaos.store)) in damaged(chaos.store)
    chunk.write_bytes(whole)
    chaos.conclude(chaos.resume(ended, "--tol", TOL, code=1))


@pytest.mark.parametrize(
    ("what", "how"),
    [
        ("file", "flipped"),
        ("record", "cut"),
        ("record", "deleted"),
        pytest.param("file", "cut", marks=pytest.mark.chaos_long),
        pytest.param("file", "deleted", marks=pytest.mark.chaos_long),
        pytest.param("record", "flipped", marks=pytest.mark.chaos_long),
    ],
)
def test_checkpoint(chaos: Chaos, rng: random.Random, what: str, how: str) -> None:
    """The newest one, after a kill: the run goes on from the one before."""
    job = chaos.train(*KEPT, *ENDLESS)
    chaos.wait_for_checkpoints(2)
    job.end()
    before, newest = chaos.checkpoints()[-2:]
    record = int(newest.stem)
    files = [path for path in newest.parent.glob(f"{newest.stem}-*/**/*") if path.is_file()]
    hurt(newest if what == "record" else rng.choice(sorted(files)), how, rng)
    if (what, how) != ("record", "deleted"):
        assert damaged(chaos.store), "fsck says so"
    ended = chaos.go_on("--tol", TOL, since=int(before.stem))
    if (what, how) == ("record", "deleted"):
        chaos.row.saw = "nothing: it was never published"
    else:
        assert f"checkpoint {record}" in ended.err or newest.name in ended.err, ended.err
    chaos.conclude(ended, damaged="r0001/checkpoints/")


@pytest.mark.parametrize("what", ["manifest", "labels", "commit"])
def test_cut(chaos: Chaos, rng: random.Random, what: str) -> None:
    """Of a data set: it is not trained on before it is whole."""
    pattern = {"manifest": "datasets/*/files.json", "labels": "arrays/labels/c/**/*", "commit": "0*.json"}[
        what
    ]
    found = [path for path in sorted(chaos.store.rglob(pattern)) if path.is_file()]
    path = rng.choice(found)
    whole = hurt(path, "cut", rng)
    ended = chaos.train(*FREE).wait()
    assert ended.code in (1, 2)
    assert path.name in ended.sentence
    assert "Traceback" not in ended.err
    assert damaged(chaos.store)
    path.write_bytes(whole)
    chaos.row.saw = shorten(ended.sentence)
    chaos.conclude(chaos.train(*FREE).wait())


def test_kill_and_damage_everywhere(chaos: Chaos, rng: random.Random) -> None:
    """All checkpoints damaged: the run says so and does not begin again in silence."""
    job = chaos.train(*KEPT, *ENDLESS)
    chaos.wait_for_checkpoints(2)
    job.send(signal.SIGKILL)
    job.wait()
    for record in chaos.checkpoints():
        hurt(record, "cut", rng)
    ended = chaos.train(run="r0001").wait()
    assert ended.code == 1
    assert "start a new run" in ended.sentence
    chaos.row.saw = shorten(ended.sentence)
    shutil.rmtree(chaos.store / "runs" / "r0001")
    chaos.conclude(chaos.train(*FREE).wait())


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
