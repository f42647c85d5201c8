"""A flow that does nothing, served on a schedule: the doctor's proof that schedules fire."""

from __future__ import annotations

import sys

from prefect import flow


@flow(name="topline-doctor", persist_result=False)
def heartbeat() -> None:
    """Complete."""


if __name__ == "__main__":
    heartbeat.serve(name="schedule", interval=int(sys.argv[1]))
