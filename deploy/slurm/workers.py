"""A Dask scheduler in this process and its workers as Slurm jobs, over TLS, until this process is ended."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

import dask
from dask_jobqueue import SLURMCluster
from distributed.security import Security


def main() -> None:
    """Start them and write the scheduler's address into a file, for those who connect."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="Slurm jobs of workers")
    parser.add_argument(
        "--address", type=Path, default=Path("topline-scheduler"), help="file for the address"
    )
    options = parser.parse_args()
    if dask.config.get("distributed.comm.require-encryption") is not True:
        parser.error(
            "set DASK_CONFIG to the dask.yaml of `topline certs`: other users can reach your scheduler"
        )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    pages = {"dashboard_address": "127.0.0.1:0"}
    with SLURMCluster(security=Security(), scheduler_options=pages) as cluster:
        cluster.scale(jobs=options.jobs)
        options.address.write_text(cluster.scheduler_address, encoding="ascii")
        try:
            signal.pause()
        except KeyboardInterrupt:
            return
        finally:
            options.address.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
