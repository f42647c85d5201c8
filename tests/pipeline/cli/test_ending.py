"""How the process of a command ends: after all work is done, and on a full disk."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.conftest import Topline
from tests.pipeline.pictures import write_classes
from tests.pipeline.small_data import small_dataset
from tests.processes import run_program
from topline.pipeline import jobs
from topline.pipeline.certification import certify
from topline.pipeline.cli.table import FAILURE
from topline.pipeline.ingest import extract
from topline.pipeline.jobs import STEPS
from topline.pipeline.options import ClusterConfig, ExtractConfig, TrainConfig
from topline.pipeline.prediction import files
from topline.pipeline.training import train
from topline.storage.models import load_model
from topline.storage.stores import local, open_store

# An object that aborts the process when the interpreter lets go of it, as those of libraries do now and then.
ABORTING = """
import os, sys
class Aborts:
    def __del__(self, abort=os.abort):
        abort()
sys.kept = Aborts()
"""
COMMAND = """
from topline.pipeline.cli import main
main()
"""


@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["fsck", "nowhere-at-all"], 2)])
def test_a_command_ends_with_its_own_code(words: list[str], code: int) -> None:
    ran = run_program([sys.executable, "-c", ABORTING + COMMAND, *words])
    assert ran.returncode == code, ran.stderr
    assert ("topline" in ran.stdout) == (code == 0)
    assert ("nowhere-at-all" in ran.stderr) == (code == 2)


def test_a_process_that_is_no_command_is_aborted() -> None:
    """The check above would pass on anything if the object did not abort."""
    ran = subprocess.run([sys.executable, "-c", ABORTING], capture_output=True, check=False)
    assert ran.returncode == -6


# A command that a signal reaches while its modules are imported.
STARTING = """
import signal, sys
number = int(sys.argv.pop(1))
class Found:
    def find_spec(self, name, *_):
        if name == "typer":
            signal.raise_signal(number)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Found())
from topline.pipeline.cli import main
main()
"""


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_while_topline_starts_ends_in_a_sentence(number: int, name: str) -> None:
    ran = run_program([sys.executable, "-c", STARTING, str(int(number)), "--version"])
    assert (ran.returncode, ran.stdout) == (128 + number, "")
    assert ran.stderr == f"error: stopped by {name}; nothing had begun\n"


# A command that a signal reaches in the destructor of an object, which Python would go on after.
DESTROYED = """
import os, signal, sys, time
from topline.pipeline.cli import entry, main
number = int(sys.argv.pop(1))
class Struck:
    def __del__(self):
        os.kill(os.getpid(), number)
        time.sleep(0.001)
def working(*_, **__):
    Struck()
    time.sleep(600)
signal.signal(signal.SIGINT, signal.default_int_handler)
entry.app = working
main()
"""


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_a_signal_within_a_destructor_is_not_lost(number: int, name: str) -> None:
    words = [sys.executable, "-c", DESTROYED, str(int(number)), "--version"]
    ran = run_program(words)
    assert (ran.returncode, ran.stdout) == (128 + number, "")
    assert ran.stderr == (
        f"error: stopped by {name}; what was stored is whole, and the same command goes on from there\n"
    )


# A command that a signal reaches after its work, in the joins of Python's last threads.
JOINED = """
import signal, sys, threading
from topline.pipeline.cli import main
number = int(sys.argv.pop(1))
signal.signal(signal.SIGINT, signal.default_int_handler)
threading._register_atexit(signal.raise_signal, number)
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_last_join_leaves_the_command_done(number: int) -> None:
    words = [sys.executable, "-c", JOINED, str(int(number)), "--version"]
    ran = run_program(words)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("topline ")


# A command that a signal reaches in the function of training that is named, in a compiled call, or an import.
STOPPED = """
import signal, sys
from topline.pipeline.training import session
number, function, where = int(sys.argv.pop(1)), sys.argv.pop(1), sys.argv.pop(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores SIGINT
def stopped(*_, **__):
    try:
        signal.raise_signal(number)
    except KeyboardInterrupt as error:
        if where == "compiled":
            raise SystemError("CPUDispatcher(<function>) returned a result with an exception set") from error
        if where == "imported":
            raise ImportError("cannot load module more than once per process")
        raise
setattr(session, function, stopped)
from topline.pipeline.cli import main
main()
"""


@pytest.mark.covering(1)
@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
@pytest.mark.parametrize("function", ["plan_training", "_compile_jit_functions"])
@pytest.mark.parametrize("where", ["interpreted", "compiled", "imported"])
def test_a_signal_before_the_first_round_ends_as_the_guide_says(
    tmp_path: Path, where: str, function: str, number: int, name: str
) -> None:
    """With nothing to resume before the run is recorded, and with its command from then on."""
    small_dataset(tmp_path / "store")
    words = ("train", "--store", str(tmp_path / "store"), "--k", "2", "--workers", "0")
    ran = run_program([sys.executable, "-c", STOPPED, str(int(number)), function, where, *words])
    begun = function != "plan_training"
    assert ran.returncode == (75 if begun else 128 + number), ran.stderr
    assert f"error: stopped by {name}; " in ran.stderr
    assert ("--resume r0001" in ran.stderr) == begun


Fill = Callable[[], None]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder, here = tmp_path_factory.mktemp("full"), ClusterConfig(workers=0)
    photos, store = write_classes(folder / "photos", 3, 10), str(folder / "store")
    extract(
        ExtractConfig(images=str(photos), store=store, backbone="hog:size=24,cells=8", val_share=0.2), here
    )
    return train(TrainConfig(store=store, k=2, certify=False), here).model


@pytest.fixture
def fill_the_disk(monkeypatch: pytest.MonkeyPatch) -> Fill:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill() -> None:
        monkeypatch.setattr(local, "_write_all", full)
        monkeypatch.setattr(files, "_csv", full)

    return fill


def test_certificates_and_evaluations_are_shown(
    topline: Topline, model: str, fill_the_disk: Fill, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    # Other tests store a calibration.
    model = str(shutil.copytree(Path(model).parents[1], tmp_path / "store") / "models" / Path(model).name)
    before = load_model(model).record.revision
    fill_the_disk()
    certified = topline("certify", model)
    assert (certified.code, "certified from A: relative gap" in certified.out) == (FAILURE, True)
    assert "error: this is not recorded with the model: no space is left to write" in certified.err
    measured = topline("evaluate", model)
    assert (measured.code, "top-1" in measured.out) == (FAILURE, True)
    assert "the calibration is used and not stored: no space is left" in caplog.text
    found = topline("evaluate", model, "--json").json
    assert found["topk"]["1"] > 0.9
    assert (found["error"]["kind"], found["error"]["exit_code"]) == ("NotStoredError", FAILURE)
    assert load_model(model).record.revision == before


def test_a_model_is_shown_whose_certificate_has_no_room(
    topline: Topline, model: str, fill_the_disk: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_a_full_disk(*of: Any) -> Any:
        fill_the_disk()
        return certify(*of)

    steps = replace(STEPS, certify=on_a_full_disk)
    monkeypatch.setattr(jobs.train_as_asked, "__kwdefaults__", {"search": None, "steps": steps})
    store = str(Path(model).parents[1])
    ran = topline("train", "--store", store, "--k", "1", "--workers", "0")
    assert (ran.code, "certified from A: relative gap" in ran.out) == (FAILURE, True)
    assert "error: this is not recorded with the model: no space is left to write" in ran.err
    assert f"{store}/models/m0002" in ran.out


def test_rows_that_the_store_has_no_room_for_go_to_the_output(
    topline: Topline, model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(local, "_write_all", full)
    words = ("predict", model, "--dataset", "latest", "--top-k", "3")
    nowhere = topline(*words)
    assert (nowhere.code, nowhere.out) == (FAILURE, "")
    ran = topline(*words, "--output", str(tmp_path / "rows.csv"))
    assert ran.code == FAILURE
    assert "not kept, the store is full" in ran.out
    assert "error: the predictions are not kept: no space is left to write" in ran.err
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 31


@pytest.mark.parametrize("option", ["--output", "--page"])
def test_predictions_are_shown(
    topline: Topline, model: str, fill_the_disk: Fill, tmp_path: Path, option: str
) -> None:
    photos = str(Path(model).parents[2] / "photos")
    place = tmp_path / {"--output": "rows.csv", "--page": "rows.html"}[option]
    stored = topline("predict", model, "--dataset", "latest")
    assert stored.code == 0, stored.err
    fill_the_disk()
    for subject in (("--images", photos), ("--dataset", "latest")):
        ran = topline("predict", model, *subject, option, str(place))
        assert ran.code == FAILURE
        assert ("class0" if subject[0] == "--images" else "stored already") in ran.out
        assert "error: " in ran.err
        assert ("no space is left" in ran.err) or ("No space left" in ran.err)
        assert place.name not in ran.out, "it is not there"
        found = topline("predict", model, *subject, option, str(place), "--json").json
        assert found[option.removeprefix("--")] is None
        assert found["error"]["exit_code"] == FAILURE


def test_a_store_that_is_only_read_is_not_called_full(
    topline: Topline, model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    open_store(str(Path(model).parents[1])).delete_tree("predictions")
    monkeypatch.setattr(local.LocalStore, "is_writable", lambda self: False)
    words = ("predict", model, "--dataset", "latest", "--output")
    ran = topline(*words, str(tmp_path / "rows.csv"))
    assert (ran.code, "not kept, the store is read-only" in ran.out) == (0, True)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "_csv", full)
    ran = topline(*words, str(tmp_path / "more.csv"))
    assert (ran.code, "not kept, the store is read-only" in ran.out) == (FAILURE, True)
