"""The Slurm job, real but for Slurm itself: `sbatch` and `scancel` start and end processes here."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

from tests.pipeline.small_data import make_features, make_split, write_dataset
from tests.processes import until
from topline.storage.stores import open_store

ROOT = Path(__file__).resolve().parents[2]
SLURM = ROOT / "deploy" / "slurm"
SBATCH = """#!/usr/bin/env bash
cp "$1" "$SPOOL/job-$$.sh"  # the script is gone when sbatch is back, and Slurm keeps a copy as well
setsid bash "$SPOOL/job-$$.sh" > "$SPOOL/worker-$$.log" 2>&1 < /dev/null &
echo "$!" >> "$SPOOL/jobs"
echo "Submitted batch job $!"
"""
SCANCEL = """#!/usr/bin/env bash
kill -TERM -- "-$1"
"""

pytestmark = [pytest.mark.deployment, pytest.mark.timeout(900)]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "bin").mkdir()
    for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    settings = yaml.safe_load((SLURM / "jobqueue.yaml").read_text())
    settings["jobqueue"]["slurm"].update(cores=1, processes=1, memory="2GiB")
    (tmp_path / ".config" / "dask").mkdir(parents=True)
    (tmp_path / ".config" / "dask" / "jobqueue.yaml").write_text(yaml.safe_dump(settings))
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    found = {**os.environ, "HOME": str(tmp_path), "PATH": path, "SPOOL": str(tmp_path)}
    return {**found, "TOPLINE_DEPLOY": str(SLURM), "TOPLINE_JOBS": "2"}


def jobs_left(folder: Path) -> list[psutil.Process]:
    pids = [int(line) for line in (folder / "jobs").read_text().split()]
    return [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]


def start(folder: Path, environ: dict[str, str], *words: str) -> subprocess.Popen[str]:
    X, labels = make_features(2000, 16, 5)
    write_dataset(open_store(folder / "store", create=True), X, labels, make_split(2000), m=5)
    return subprocess.Popen(
        ["bash", str(SLURM / "train.sbatch"), "--store", str(folder / "store"), "--k", "2", *words],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_training_job_starts_its_workers_over_tls_and_ends_with_them(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    job = start(tmp_path, environ)
    said, _ = job.communicate(timeout=600)
    assert job.returncode == 0, said
    assert re.search(r"certificate +certified", said)
    logs = "".join(path.read_text() for path in tmp_path.glob("worker-*.log"))
    assert len(set(re.findall(r"Start worker at: +(tls://\S+)", logs))) >= 1
    until(lambda: not jobs_left(tmp_path), "the end of its jobs")


def test_a_job_that_slurm_ends_can_be_resumed(tmp_path: Path, environ: dict[str, str]) -> None:
    job = start(tmp_path, environ, "--tol", "1e-12", "--method", "fw", "--max-passes", "10000000")
    until(lambda: list((tmp_path / "store" / "runs").glob("*/history.jsonl")), "a training", by=job)
    job.send_signal(signal.SIGTERM)
    said, _ = job.communicate(timeout=300)
    assert job.returncode == 75, said
    assert "--resume" in said
