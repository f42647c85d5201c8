"""The commands of deploy/compose/README.md as printed, the containers as processes in roots of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from tests.e2e.compose_processes import docker

pytestmark = [pytest.mark.deployment, pytest.mark.timeout(1800)]

PAGE = (docker.ROOT / "deploy" / "compose" / "README.md").read_text()
COMMANDS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(open_folder: Path) -> Path:
    """Where the page's commands are given, with images and a `docker` that is our stand-in."""
    if os.getuid() != 0:
        pytest.skip("namespaces and mounts need root")
    if not list(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        pytest.skip("no PostgreSQL: apt-get install postgresql")
    wrapper = open_folder / "bin" / "docker"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} {docker.__file__} {open_folder} "$@"\n')
    wrapper.chmod(0o755)
    X, y = load_digits(return_X_y=True)
    for number in range(300):
        place = open_folder / "images" / str(y[number]) / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        pixels = (15 * X[number].reshape(8, 8)).astype(np.uint8)
        Image.fromarray(pixels).resize((64, 64)).save(place)
    return open_folder


def given(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in namespaces that end with it, and all processes inside with them."""
    words = [
        "unshare",
        "--net",
        "--mount",
        "--propagation",
        "private",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    environ = {"PATH": path, "HOME": str(folder), "LANG": "C.UTF-8"}
    if "PYTHONPATH" in os.environ:
        environ["PYTHONPATH"] = os.environ["PYTHONPATH"]
    return subprocess.run(
        [*words, "bash", "-euo", "pipefail", "-c", f"ip link set lo up\n{script}"],
        cwd=folder, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1500,
    )  # fmt: skip


def logs(folder: Path) -> str:
    return "\n".join(
        f"--- {log.name}\n{log.read_text(errors='replace')[-2500:]}" for log in folder.glob("*.log")
    )


def test_the_commands_of_the_page_start_everything_and_retrain(folder: Path) -> None:
    no_certificate = 'from distributed import Client; Client("tls://127.0.0.1:8786", timeout=20)'
    checks = [
        "docker compose ps",
        "docker compose exec worker topline certify s3://topline/store",
        "docker compose exec worker topline models list --store s3://topline/store",
        f"! docker compose exec scheduler python -c '{no_certificate}' 2>/dev/null",
        "! docker compose exec prefect sh -c 'ls /certs || ls /srv/topline/images' 2>/dev/null",
        "! docker compose exec worker touch /srv/topline/new 2>/dev/null",
        "curl -s --fail http://127.0.0.1:8787/topline | head -c 200",
    ]
    done = given(folder, "\n".join([*COMMANDS, *checks]))
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}\n{logs(folder)}"
    assert "database healthy\nprefect healthy\nscheduler healthy\nworkers healthy\n" in done.stdout
    assert re.search(r"certificate +certified", done.stdout)
    assert re.search(r"m0001 .*champion", done.stdout)
