"""What an installation leaves in site-packages, and that folders of the rooms' names harm nothing."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.others_rooms import ROOMS, others_rooms

ROOT = Path(__file__).resolve().parents[1]


def files_of_the_rooms() -> set[str]:
    found = {
        f"topline/{path.relative_to(ROOT).as_posix()}"
        for room in ROOMS
        for path in (ROOT / room).rglob("*")
        if path.is_file() and path.suffix in {".py", ".yml", ".css", ".js", ".j2"}
    }
    return found | {f"topline/{name}" for name in ("__init__.py", "__main__.py", "py.typed")}


def test_changes_and_images_have_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    heads = re.findall(r"^## (.*)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    in_the_making = version.removesuffix(".dev0") != version
    expected = f"{version.removesuffix('.dev0')}, " + ("unreleased" if in_the_making else r"\d{4}-\d\d-\d\d")
    assert re.fullmatch(expected, heads[0])
    assert all(re.fullmatch(r"\d+\.\d+\.\d+, \d{4}-\d\d-\d\d", head) for head in heads[1:])
    tags = {
        tag
        for path in (ROOT / "deploy").rglob("*")
        if path.is_file()
        for tag in re.findall(r"(?:topline:|newTag: )(\d[\w.]*)", path.read_text(encoding="utf-8"))
    }
    assert tags == {version}


@pytest.mark.slow
def test_wheel_and_sdist_hold_topline_alone_and_all_of_it(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(checkout)], check=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(checkout)],
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == files_of_the_rooms()
    subprocess.run(
        [sys.executable, "-m", "build", "--sdist", "--outdir", str(tmp_path), str(checkout)],
        check=True,
        capture_output=True,
    )
    (sdist,) = tmp_path.glob("*.tar.gz")
    again = tmp_path / "again"
    with tarfile.open(sdist) as archive:
        archive.extractall(again, filter="data")
    (unpacked,) = again.iterdir()
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(again), str(unpacked)], check=True
    )
    (rebuilt,) = again.glob("*.whl")
    assert {name for name in zipfile.ZipFile(rebuilt).namelist() if ".dist-info/" not in name} == names


@pytest.mark.parametrize(
    "words", [("--help",), ("models", "list", "--store", "no-store"), ("doctor", "--help")]
)
@pytest.mark.sampled(3)
def test_folders_of_the_rooms_names_harm_no_command(tmp_path: Path, words: tuple[str, ...]) -> None:
    others_rooms(tmp_path)
    command = [sys.executable, "-m", "topline", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == (2 if "no-store" in words else 0), done.stderr
    assert "imported by mistake" not in done.stderr


@pytest.mark.slow
def test_a_folder_called_flows_is_not_what_a_deployment_imports(tmp_path: Path) -> None:
    others_rooms(tmp_path)
    code = (
        "from prefect.flows import load_flow_from_entrypoint as load\n"
        "flow = load('topline.flows.retraining.retrain', use_placeholder_flow=False)\n"
        "assert flow.name == 'retrain', flow"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
