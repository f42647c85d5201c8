"""Checks of an installation, and file systems that refuse calls: jobs work or say so before any work."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests.pipeline.conftest import Topline
from tests.processes import until
from topline.pipeline.doctor import Check, CheckFailedError, CheckResult, installation, run_checks, runner
from topline.pipeline.doctor.installation import place
from topline.storage.stores import open_store

BROKEN = "tests.pipeline.doctor.broken_checks"
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of the checks find `tests` through the working directory."""
    monkeypatch.chdir(ROOT)


def run(name: str, timeout: float = 300.0) -> CheckResult:
    return run_checks(checks=[Check(name, f"{BROKEN}:{name}", timeout)])[0]


def test_a_good_check_gives_its_sentence_and_nothing_to_fix() -> None:
    check = run("fine")
    assert (check.name, check.ok, check.detail, check.fix) == ("fine", True, "all is well", "")
    assert check.seconds > 0


@pytest.mark.parametrize(
    ("name", "detail", "fix"),
    [
        ("failing", "the moon is missing", "Wait for the night."),
        ("raising", "ZeroDivisionError: no denominator", "broken_checks:raising"),
        ("dying", "signal SIGSEGV", "broken_checks:dying"),
        ("leaving", "exit code 7: the last words", "broken_checks:leaving"),
        ("absent", "has no attribute 'absent'", "broken_checks:absent"),
    ],
)
def test_a_broken_check_is_a_failed_line_with_a_fix(name: str, detail: str, fix: str) -> None:
    check = run(name)
    assert not check.ok
    assert detail in check.detail
    assert fix in check.fix


def test_a_hanging_check_ends_at_its_deadline_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "child"
    monkeypatch.setenv("CHILD_NOTE", str(note))

    class Overdue(subprocess.Popen[bytes]):
        """A process whose deadline passes as soon as its child runs."""

        def wait(self, timeout: float | None = None) -> int:
            if timeout is None:
                return super().wait()
            while not note.exists() or not note.read_text():
                assert self.poll() is None, "the hanging check ended"
                time.sleep(0.05)
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(subprocess, "Popen", Overdue)
    check = run("hanging", timeout=4.0)
    assert not check.ok
    assert "no answer within 4 s" in check.detail
    child = int(note.read_text())
    until(lambda: has_ended(child), "the end of the hanging check's child", 120.0)


def has_ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_one_broken_check_leaves_the_others() -> None:
    names = ["dying", "fine", "failing"]
    results = run_checks(checks=[Check(name, f"{BROKEN}:{name}", 300.0) for name in names])
    assert [result.name for result in results] == names
    assert [result.ok for result in results] == [False, True, False]


def test_slow_checks_run_only_when_they_are_asked_for() -> None:
    checks = [Check("fine", f"{BROKEN}:fine", 300.0, on_schedule=True)]
    assert run_checks(checks=checks) == []
    assert [check.ok for check in run_checks(checks=checks, schedule=True)] == [True]


def test_checks_come_in_through_entry_points_and_a_broken_contribution_is_a_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = (
        EntryPoint("good", "tests.pipeline.doctor.test_runner:contributed", runner.ENTRY_POINTS),
        EntryPoint("gone", "no_such_module:checks", runner.ENTRY_POINTS),
    )
    monkeypatch.setattr(runner, "entry_points", lambda group: points if group == runner.ENTRY_POINTS else ())
    monkeypatch.setattr(runner, "CHECKS", ())
    gone, good = run_checks()
    assert (good.name, good.ok) == ("contributed", True)
    assert (gone.name, gone.ok) == ("gone", False)
    assert "no_such_module" in gone.detail


def contributed() -> list[Check]:
    return [Check("contributed", f"{BROKEN}:fine", 300.0)]


def test_an_offending_pin_is_named_with_the_command_that_fixes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"fastapi": "0.165.0", "sqlalchemy": "2.0.58", "dask": "2026.8.0", "distributed": "2026.8.0"}
    monkeypatch.setattr(installation, "requires", lambda _: ["fastapi<0.151", "sqlalchemy[asyncio]<2.1"])
    monkeypatch.setattr(installation, "installed_version", there.get)
    with pytest.raises(
        CheckFailedError, match=r"fastapi 0\.165\.0 is installed, topline needs <0\.151"
    ) as caught:
        installation.versions()
    assert caught.value.fix == 'python -m pip install "fastapi<0.151"'


def test_dask_and_distributed_must_be_of_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"dask": "2026.8.0", "distributed": "2026.7.0"}
    monkeypatch.setattr(installation, "requires", lambda _: ["dask>=2026.1", "distributed>=2026.1"])
    monkeypatch.setattr(installation, "installed_version", there.get)
    with pytest.raises(CheckFailedError, match="dask and distributed differ") as caught:
        installation.versions()
    assert '"distributed==2026.8.0"' in caught.value.fix


def test_requirements_of_extras_and_other_platforms_are_left_out() -> None:
    declared = ['moto>=5 ; extra == "test"', 'pywin32 ; sys_platform == "nowhere"', "zarr[remote]>=9"]
    found = installation.mismatches(declared, lambda _: "3.1.6")
    assert found == {"zarr 3.1.6 is installed, topline needs >=9": "zarr[remote]>=9"}
    assert installation.mismatches(["zarr>=3"], lambda _: None) == {"zarr is not installed": "zarr>=3"}


@pytest.mark.parametrize(
    ("told", "kernels", "wide", "said"),
    [
        (None, "Haswell", True, "export OPENBLAS_CORETYPE=SkylakeX"),
        ("Haswell", "Haswell", True, "unset OPENBLAS_CORETYPE, which is Haswell"),
        (None, "SkylakeX", True, ""),
        (None, "Haswell", False, ""),
    ],
)
def test_narrow_products_on_a_wide_processor_are_noticed(
    monkeypatch: pytest.MonkeyPatch, told: str | None, kernels: str, wide: bool, said: str
) -> None:
    monkeypatch.setattr("llvmlite.binding.get_host_cpu_features", lambda: {"avx512f": wide})
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    if told:
        monkeypatch.setenv("OPENBLAS_CORETYPE", told)
    remark = installation.narrow_products([{"internal_api": "openblas", "architecture": kernels}])
    assert remark.endswith(said)
    assert bool(remark) == bool(said)


def test_more_threads_than_processors_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation.os, "sched_getaffinity", lambda _: ())
    with pytest.raises(CheckFailedError, match="on 0 processors"):
        installation.threads()


def test_a_full_disk_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "LEAST_DISK", 1 << 60)
    with pytest.raises(CheckFailedError, match="GiB are free for the working directory"):
        installation.space()


def test_a_store_that_notices_nothing_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the flipped byte by the same byte: the check must not pass when reading succeeds."""
    monkeypatch.setattr(Path, "write_bytes", lambda self, data: len(data))
    with pytest.raises(CheckFailedError, match="was not noticed"):
        installation.store()


@pytest.mark.cluster
@pytest.mark.parametrize(
    "wanted",
    [
        # Two processes of Dask take seconds, and README's `topline doctor` starts them too.
        pytest.param(check, marks=pytest.mark.slow if check.name == "cluster" else ())
        for check in runner.CHECKS
    ],
    ids=lambda check: check.name,
)
def test_this_installation_is_sound(wanted: Check) -> None:
    (check,) = run_checks(checks=[wanted])
    assert check.ok, check


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
    tmp_path: Path, topline: Topline, refuse: Any, call: str, number: str
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
        ran = topline(*job.split())
        said = ran.err
        assert "a fault in topline" not in said
        if ran.code:
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
