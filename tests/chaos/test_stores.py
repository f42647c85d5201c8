"""Disks that fill, stores that refuse, and files that rot while a run reads and writes them."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.harness import FREE, KEPT, TOL, Chaos, shorten
from tests.pipeline.small_data import feature_files
from tests.small_disk import small_disk
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
