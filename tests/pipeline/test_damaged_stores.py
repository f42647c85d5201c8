"""No file of a finished store is damaged, lost or exchanged without fsck saying so by name."""

from __future__ import annotations

import itertools
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.damaged_stores import finished_store, kind_of, record_paths, topline, walk
from tests.processes import run_program
from tests.storage.test_integrity import flip_first
from topline.pipeline.errors import InputError
from topline.pipeline.readers import open_features, read_labels
from topline.storage.errors import IntegrityError
from topline.storage.models import load_model, read_standing, update_record
from topline.storage.runs import read_run
from topline.storage.stores import CommitLog, Store, open_store
from topline.storage.verification import verify_store


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return finished_store(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def store(whole: Store, tmp_path: Path) -> Store:
    shutil.copytree(whole.url, tmp_path / "store")
    return open_store(str(tmp_path / "store"))


def test_a_finished_store_is_in_order(whole: Store) -> None:
    assert verify_store(whole) == []


def test_every_kind_of_record_is_looked_at(store: Store) -> None:
    kinds = ("json", "jsonl", "head")
    records = [path for path in record_paths(store) if path.rpartition(".")[2] in kinds]
    one_of_each = some_of_each([path for path in records if not path.endswith("zarr.json")], 1)
    assert len(one_of_each) > 15
    found_of = walk(store, one_of_each, deep=False)
    assert [f"{found.path} {found.damage}" for found in found_of if not found.noticed] == []


def some_of_each(paths: list[str], most: int) -> list[str]:
    """At most so many files of each kind, the first among them."""
    kinds = (list(paths) for _, paths in itertools.groupby(sorted(paths, key=kind_of), kind_of))
    return [path for kind in kinds for path in kind[:: -(-len(kind) // most)]]


@pytest.mark.slow
def test_two_files_of_every_kind_are_looked_at_in_depth(store: Store) -> None:
    """`python -m tests.pipeline.damaged_stores` damages every file."""
    unnoticed = [found for found in walk(store, some_of_each(record_paths(store), 2)) if not found.noticed]
    assert [f"{found.path} {found.damage}" for found in unnoticed] == []


def copy(store: Store, source: str, target: str) -> None:
    store.write_bytes(target, store.read_bytes(source))


def test_a_model_is_not_taken_for_another(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (CommitLog(store, name, "models") for name in ("m0001", "m0002"))
    copy(store, f"{first.folder}/00000002.json", f"{second.folder}/{second.numbers()[-1]:08d}.json")
    for command in ("certify", "evaluate"):
        with pytest.raises(RuntimeError, match="ended with 1"):
            topline(command, f"{store.url}/models/m0002")
        assert "is a record of models/m0001/0000000" in capsys.readouterr().err
    with pytest.raises(IntegrityError, match="not its own"):
        update_record(f"{store.url}/models/m0002", evaluation={})
    assert load_model(f"{store.url}/models/m0001").record.id == "m0001"


def test_a_lost_decision_does_not_bring_the_last_champion_back(store: Store) -> None:
    assert read_standing(store).champion == "m0003"
    store.delete("commits/registry/00000002.json")
    with pytest.raises(IntegrityError, match=r"registry/00000002\.json is missing"):
        read_standing(store)


def test_a_run_is_not_taken_for_another(store: Store) -> None:
    copy(store, "runs/r0001/outcome.json", "runs/r0002/outcome.json")
    with pytest.raises(IntegrityError, match=r"is a record of runs/r0001/outcome\.json"):
        read_run(store, "r0002")


def test_a_damaged_manifest_stops_a_certificate(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    (path, *_) = (path for path in store.walk("datasets") if path.endswith("units.json"))
    flip_first(store, path)
    codes = []
    for model in ("m0001", "m0002"):
        try:
            topline("certify", f"{store.url}/models/{model}")
            codes.append(0)
        except RuntimeError:
            codes.append(1)
            assert "units.json is damaged" in capsys.readouterr().err
    assert sorted(codes) == [0, 1]


ROOT = Path(__file__).resolve().parents[2]
EVERYTHING = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(("inputs", "lines"), [(10, 2), pytest.param(60, 40, marks=EVERYTHING)])
def test_nothing_ends_with_a_fault(inputs: int, lines: int) -> None:
    command = [sys.executable, "-m", "tests.pipeline.fuzz", "--inputs", str(inputs), "--lines", str(lines)]
    ran = run_program(command, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{inputs} inputs and {lines} command lines: 0 faults" in ran.stdout


@pytest.mark.parametrize("read", [open_features, read_labels])
def test_an_archive_that_unpacks_to_far_more_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], object]
) -> None:
    """The directory of the archive alone says that some 300 kB unpack to 320 MB."""
    path = tmp_path / "X.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed, packed.open("X.npy", "w") as file:
        file.write(bytes(320 << 20))

    def unpacked(*_: object) -> None:
        pytest.fail("it was unpacked")

    monkeypatch.setattr(zipfile.ZipFile, "open", unpacked)
    with pytest.raises(InputError, match=r"X\.npy in .* unpacks to 335,544,320: no features shrink so far"):
        read(path)
