"""File systems that refuse calls: `topline doctor STORE` says what a place lacks, and jobs work or say so."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from topline.pipeline.cli import main
from topline.pipeline.doctor import CheckFailedError, run_checks
from topline.pipeline.doctor.installation import place
from topline.storage.stores import open_store

#: What a file system answers to a call that it lacks; any other answer is a fault of the disk.
LACKS = {
    "flock": ("ENOLCK", "ENOSYS", "EOPNOTSUPP", "EPERM", "EINVAL"),
    "link": ("ENOSYS", "EOPNOTSUPP", "EPERM", "EINVAL"),
    "fsync": ("ENOSYS", "EOPNOTSUPP", "EPERM", "EINVAL"),
    "rename": (),
}
NUMBERS = ("ENOLCK", "ENOSYS", "EOPNOTSUPP", "EPERM", "EINVAL", "EIO")


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Let every call of a kind fail with an error; of fsync those of folders."""
    fsync = os.fsync

    def refuse(call: str, name: str) -> None:
        number = getattr(errno, name)

        def refused(*_: Any, **__: Any) -> None:
            raise OSError(number, os.strerror(number))

        def synced(descriptor: int) -> None:
            (refused if stat.S_ISDIR(os.fstat(descriptor).st_mode) else fsync)(descriptor)

        places: dict[str, tuple[Any, str, Any]] = {
            "flock": (fcntl, "flock", refused),
            "link": (os, "link", refused),
            "fsync": (os, "fsync", synced),
            "rename": (Path, "replace", refused),
        }
        monkeypatch.setattr(*places[call])

    return refuse


@pytest.mark.covering(1)
@pytest.mark.parametrize("call", LACKS)
@pytest.mark.parametrize("number", NUMBERS)
def test_a_store_of_which_a_call_is_refused_works_or_says_so_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refuse: Any, call: str, number: str
) -> None:
    X, y, store = str(tmp_path / "X.npy"), str(tmp_path / "y.npy"), str(tmp_path / "store")
    np.save(X, np.random.default_rng(0).normal(size=(60, 4)))
    np.save(y, np.arange(60) % 3)
    refuse(call, number)
    lacks = number in LACKS[call]
    jobs = (
        f"import --features {X} --labels {y} --store {store}",
        f"train --workers 0 --loss softmax --store {store}",
        f"prune {store} --dry-run",
    )
    for job in jobs:
        with pytest.raises(SystemExit) as ended:
            main(job.split())
        said = capsys.readouterr().err
        assert "a fault in topline" not in said
        if ended.value.code:
            assert not lacks, said
            assert said.startswith("error: ")
            assert f"cannot be used: {os.strerror(getattr(errno, number))}" in said
            return
    # Nothing that was refused was needed, as locks and links are not for an import alone.
    assert lacks


@pytest.mark.parametrize("url", ["store", "memory://place"])
def test_a_sound_place_is_left_as_it_was(tmp_path: Path, url: str) -> None:
    store = open_store(url if "://" in url else tmp_path / url, create=True)
    store.write_bytes("mine", b"1")
    found = f"{store.url}: files are written whole, names taken once, leases held"
    assert place(store.url).startswith(found)
    assert store.walk() == ["mine"]


def test_a_store_that_is_still_to_be_made_is_tried_where_it_will_be(tmp_path: Path) -> None:
    (check,) = run_checks(checks=[], store=str(tmp_path / "new" / "store"))
    assert check.ok, check.detail
    assert "by hard links and locks of the kernel" in check.detail
    assert not list(tmp_path.iterdir())


def test_what_a_place_lacks_is_said(tmp_path: Path, refuse: Any) -> None:
    for call, number in (("flock", "ENOLCK"), ("link", "EPERM"), ("fsync", "EINVAL")):
        refuse(call, number)
    said = place(str(tmp_path))
    for lacking in ("without hard links", "without locks of the kernel", "folders are not synced"):
        assert lacking in said


@pytest.mark.parametrize("what", ["a file", "a disk that fails"])
def test_a_place_that_holds_no_store_fails_with_a_remedy(tmp_path: Path, refuse: Any, what: str) -> None:
    folder = tmp_path / "store"
    if what == "a file":
        folder.write_text("x")
    else:
        refuse("rename", "EIO")
    with pytest.raises(CheckFailedError, match=r"is a file|Input/output error") as failed:
        place(str(folder))
    assert "local disk" in failed.value.fix
