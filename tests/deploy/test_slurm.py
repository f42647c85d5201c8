"""Slurm: scripts that bash accepts, workers that speak TLS, keys that stay out of the scripts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import dask.config
import yaml
from distributed.security import Security

from topline.pipeline.cluster.tls import make_tls_files

SLURM = Path(__file__).resolve().parents[2] / "deploy" / "slurm"
ROLES = ("scheduler", "worker", "client")


def test_bash_accepts_the_training_job() -> None:
    subprocess.run(["bash", "-n", SLURM / "train.sbatch"], check=True)


def test_a_job_of_workers_speaks_tls_and_shows_its_pages_to_nobody(tmp_path: Path) -> None:
    from dask_jobqueue.slurm import SLURMJob

    made = make_tls_files(tmp_path / "certs").folder
    files = {f"tls_{role}_{kind[0]}": str(made / f"{role}.{kind[1]}") for role in ROLES for kind in KINDS}
    security = Security(require_encryption=True, tls_ca_file=str(made / "ca.pem"), **files)
    given = yaml.safe_load((SLURM / "jobqueue.yaml").read_text())["jobqueue"]["slurm"]
    known = set(dask.config.get("jobqueue.slurm"))
    assert set(given) <= known
    with dask.config.set({f"jobqueue.slurm.{name}": value for name, value in given.items()}):
        logs = {"log_directory": str(tmp_path / "logs")}
        job = SLURMJob(scheduler="tls://node1:8786", name="w", security=security, **logs)
    script = job.job_script()
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    for words in (
        "#SBATCH --cpus-per-task=16",
        "distributed.cli.dask_worker tls://node1:8786",
        f"--tls-key {made / 'worker.key'}",
        f"--tls-ca-file {made / 'ca.pem'}",
        "--nworkers 4",
        "--dashboard-address 127.0.0.1:0",
    ):
        assert words in script
    assert "PRIVATE" not in script
    assert "client.key" not in script


KINDS = (("cert", "pem"), ("key", "key"))
