"""Damaged inputs and random command lines end with a sentence; a few here, as many as asked for with slow."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from topline.pipeline.errors import InputError
from topline.pipeline.readers import open_features, read_labels

ROOT = Path(__file__).resolve().parents[2]
EVERYTHING = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(("inputs", "lines"), [(10, 2), pytest.param(60, 40, marks=EVERYTHING)])
def test_nothing_ends_with_a_fault(inputs: int, lines: int) -> None:
    command = [sys.executable, "-m", "tests.pipeline.fuzz", "--inputs", str(inputs), "--lines", str(lines)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{inputs} inputs and {lines} command lines: 0 faults" in ran.stdout


@pytest.mark.parametrize("label", ["1_0", "0x10", "1e40", "\u0663", "1e1", "+-1", "2.5", "1234567890123456"])
def test_labels_that_look_like_numbers_and_are_none(tmp_path: Path, label: str) -> None:
    path = tmp_path / "X.svm"
    path.write_text(f"1 1:1\n{label} 1:2\n")
    with pytest.raises(InputError, match=r"X\.svm, line 2: the label .* is not a whole number: write digits"):
        open_features(path)


def test_labels_that_are_numbers_or_names(tmp_path: Path) -> None:
    path = tmp_path / "X.svm"
    path.write_text("1 1:1\n+1 1:2\n2.0 1:3\n-1 1:1\nK\u00e4fer 1:1\n007 1:1\n")
    labels = open_features(path).labels()
    assert labels is not None
    assert labels.tolist() == ["1", "+1", "2.0", "-1", "K\u00e4fer", "007"]


@pytest.mark.parametrize("index", ["999999999999", "2147483648", "9" * 30])
def test_an_index_that_no_matrix_has(tmp_path: Path, index: str) -> None:
    path = tmp_path / "X.svm"
    path.write_text(f"1 1:1\n2 {index}:1\n")
    with pytest.raises(
        InputError, match=r"X\.svm, line 2: an index is too large: columns go up to 2,147,483,647"
    ):
        open_features(path)


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
