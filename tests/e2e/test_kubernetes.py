"""The commands of deploy/kubernetes/README.md as printed, each pod as processes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.container_processes import kubectl
from tests.e2e.container_processes.machine import given, logs, machine, refused
from tests.e2e.container_processes.pods import NODE, Cluster
from tests.e2e.container_processes.roots import ROOT

pytestmark = [pytest.mark.deployment, pytest.mark.timeout(1800)]

PAGE = (ROOT / "deploy" / "kubernetes" / "README.md").read_text()
INSTALLED, RUN = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
#: A bucket as the page has it, but for TLS: in no pod, and reached by all.
STORE = f"http://{NODE}:5000"
WORKER = "kubectl -n topline exec deployment/worker --"


def connected(host: str, port: int) -> str:
    return f"python -c 'import socket; socket.create_connection((\"{host}\", {port}), 3)'"


def test_the_commands_of_the_page_start_everything_and_train(open_folder: Path) -> None:
    folder = machine(open_folder, kubectl)
    assert PAGE.count("https://s3.example") == 1
    bucket = [
        f"(cd /; exec moto_server --host {NODE} --port 5000 > {folder}/bucket.log 2>&1) &",
        f"{WORKER} python -c 'import s3fs; s3fs.S3FileSystem().mkdir(\"bucket\")'",
    ]
    prefect = Cluster(kubectl.MANIFESTS).pods["prefect"]
    images = f"{WORKER} topline extract --images /srv/topline/images --backbone hog:size=24,cells=8"
    no_certificate = 'from distributed import Client; Client("tls://topline-scheduler:8786", timeout=20)'
    checks = [
        f"{WORKER} topline certify s3://bucket/store",
        f"{WORKER} curl -sf http://dashboard:8788/metrics",
        f"{WORKER} python -m topline.flows.deploying register deploy/prefect.yaml",
        "kubectl -n topline get pods",
        f"kubectl -n topline exec deployment/prefect -- {connected('database', 5432)}",
        # Its pages, which it unpacks where its manifest gives it room.
        "kubectl -n topline exec deployment/prefect -- curl -sfL http://127.0.0.1:4200/ -o /dev/null",
        refused(f"{WORKER} {connected('database', 5432)}"),
        refused(f"kubectl -n topline exec deployment/prefect -- python -c '{no_certificate}'"),
        refused("kubectl -n topline exec deployment/prefect -- sh -c 'ls /certs || ls /srv/topline/images'"),
        refused(f"{WORKER} touch /srv/topline/new"),
        refused(f"{WORKER} touch /srv/topline/images/new"),
        f"kubectl outside curl -s --max-time 10 {STORE}/ -o /dev/null",
        refused(f"kubectl outside curl -s --max-time 3 http://{prefect.address}:4200/api/health"),
    ]
    extracted = f"{images} --store s3://bucket/store --scheduler tls://topline-scheduler:8786"
    page = INSTALLED.replace("https://s3.example", STORE)
    done = given(folder, "\n".join([page, *bucket, extracted, RUN, *checks]))
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}\n{logs(folder)}"
    assert re.search(r"certificate +certified", done.stdout)
    assert "\ntopline_models " in done.stdout
    pods = re.findall(r"^(\S+) 1/1$", done.stdout, re.MULTILINE)
    assert [re.sub(r"-\d$", "", name) for name in pods] == [
        "database", "prefect", "worker", "dashboard", "topline-scheduler", *["topline-default-worker"] * 2
    ]  # fmt: skip
