"""Another user of the machine learns nothing of a running job, and a secret is written nowhere."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.e2e.test_main_job import TOPLINE, wait_for_rounds
from tests.pipeline.small_data import make_features, make_split, write_dataset
from tests.processes import run_program
from tests.storage.conftest import s3_bucket  # noqa: F401  a fixture
from topline.pipeline.cli import main
from topline.pipeline.options.train import ClusterConfig, TrainConfig
from topline.pipeline.training import train
from topline.storage.stores import open_store

# Without a certificate of the job, in the clear and over TLS: no word comes back that is not a refusal.
STRANGER = """
import encodings.idna, json, os, socket, ssl, sys
job = json.load(sys.stdin)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
got = []
PATHS = ["/", "/metrics", "/health", "/info/main/workers.html", "/json/identity.json", "/topline", "/status"]
anything = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
anything.check_hostname, anything.verify_mode = False, ssl.CERT_NONE
for port in job["ports"]:
    for encrypted, path in [(False, path) for path in PATHS] + [(True, "/")]:
        try:
            with socket.create_connection(("127.0.0.1", port), 2) as plain:
                spoken = anything.wrap_socket(plain) if encrypted else plain
                spoken.sendall(f"GET {path} HTTP/1.0\\r\\n\\r\\n".encode())
                said = spoken.recv(1000)
                refused = not said or said[0] == 0x15 or said.startswith(b"HTTP/1.1 404 ")  # an alert of TLS
                if encrypted and said or not refused:
                    got.append(f"{port} said {said!r}")
        except OSError:
            pass
for place in job["places"]:
    try:
        found = os.listdir(place) if place.endswith("/fd") else open(place, "rb").read(9)
        got += [f"read {place}: {found!r}"] if found else []
    except OSError:
        pass
print(json.dumps(got))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become somebody else")
@pytest.mark.parametrize("processes", [False, True], ids=["threads", "processes"])
def test_a_stranger_gets_nothing_of_a_running_job(
    tmp_path: Path, open_folder: Path, *, processes: bool
) -> None:
    store, scratch = tmp_path / "store", open_folder / str(processes)
    # As many bytes as make workers processes.
    X, labels = make_features(*((17_000, 2_100, 4) if processes else (400, 16, 4)))
    write_dataset(open_store(store, create=True), X, labels, make_split(len(X)))
    scratch.mkdir()
    scratch.chmod(0o1777)
    endless = ("--method", "fw", "--tol", "1e-14", "--max-passes", "10000000", "--workers", "2")
    environ = {**os.environ, "TMPDIR": str(scratch), "AWS_SECRET_ACCESS_KEY": "a secret"}
    job = subprocess.Popen([TOPLINE, "train", "--store", store, "--k", "2", *endless], env=environ)
    try:
        wait_for_rounds(store, job)
        family = [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]
        listening = [
            one for member in family for one in member.net_connections("inet") if one.status == "LISTEN"
        ]
        assert {one.laddr.ip for one in listening} == {"127.0.0.1"}
        ports = sorted({one.laddr.port for one in listening})
        assert len(ports) >= (3 if processes else 2)
        assert len(family) > 1 or not processes
        inside = [str(path) for path in scratch.rglob("*") if path.is_file()]
        of_processes = [
            f"/proc/{one.pid}/{what}" for one in family for what in ("environ", "mem", "maps", "fd")
        ]
        words = json.dumps({"ports": ports, "places": [*inside, *of_processes]})
        done = run_program([sys.executable, "-c", STRANGER], input=words)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == []
        assert not any("secret" in word for member in family for word in member.cmdline())
    finally:
        job.terminate()
        job.wait(120)


SECRET = "secret-that-must-not-appear"
MISTAKES = (f"s3://AKIA:{SECRET}@bucket/store", f"s3://bucket/store?secret={SECRET}")


def test_a_training_on_s3_writes_the_secret_nowhere(
    s3_bucket: str,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == SECRET
    monkeypatch.chdir(tmp_path)
    store = open_store(f"s3://{s3_bucket}/secrets")
    X, labels = make_features(300, 8, 4)
    write_dataset(store, X, labels, make_split(300))
    with caplog.at_level(logging.DEBUG):
        result = train(TrainConfig(store=store.url, tol=1e-2), ClusterConfig(workers=0))
    assert result.solved
    paths = store.walk()
    assert any(path.endswith("history.jsonl") for path in paths)
    assert [path for path in paths if SECRET.encode() in store.read_bytes(path)] == []
    assert SECRET not in caplog.text
    assert SECRET not in "".join(capfd.readouterr())
    assert SECRET not in repr(store)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", MISTAKES)
@pytest.mark.parametrize("words", [["train", "--store"], ["fsck"], ["models", "list", "--store"]])
def test_a_secret_in_a_url_is_refused_and_not_repeated(
    url: str, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with pytest.raises(SystemExit) as ended:
        main([*words, url, "--json"])
    assert ended.value.code == 2
    said = "".join(capsys.readouterr())
    assert "leave credentials and options out of" in said
    assert SECRET not in said
