"""The commands of deploy/compose/README.md as printed, each container as processes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.container_processes import docker
from tests.e2e.container_processes.machine import given, logs, machine, refused
from tests.e2e.container_processes.roots import ROOT

pytestmark = [pytest.mark.deployment, pytest.mark.timeout(1800)]

PAGE = (ROOT / "deploy" / "compose" / "README.md").read_text()
COMMANDS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_commands_of_the_page_start_everything_and_retrain(open_folder: Path) -> None:
    folder = machine(open_folder, docker)
    no_certificate = 'from distributed import Client; Client("tls://127.0.0.1:8786", timeout=20)'
    checks = [
        "test $(stat -c %a .env) = 600 && docker compose run --rm setup",
        "docker compose ps",
        "curl -sf http://127.0.0.1:8788/metrics | grep topline_models",
        "docker compose exec worker topline certify s3://topline/store",
        "docker compose exec worker topline models list --store s3://topline/store",
        refused(f"docker compose exec scheduler python -c '{no_certificate}'"),
        refused("docker compose exec prefect sh -c 'ls /certs || ls /srv/topline/images'"),
        refused("docker compose exec worker touch /srv/topline/new"),
        "curl -s --fail -o page.html http://127.0.0.1:8787/topline && head -c 200 page.html",
    ]
    done = given(folder, "\n".join([*COMMANDS, *checks]))
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}\n{logs(folder)}"
    assert re.findall(r"^(\w+) healthy$", done.stdout, re.MULTILINE) == [
        "database", "prefect", "scheduler", "workers", "dashboard"
    ]  # fmt: skip
    assert re.search(r"certificate +certified", done.stdout)
    assert re.search(r"m0001 .*champion", done.stdout)
