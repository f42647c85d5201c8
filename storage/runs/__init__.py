"""Runs of training and sweeps: their records, histories, checkpoints and locks.

A run is a numbered folder that a later process can resume: `latest_checkpoint` returns its last complete
state, `read_history` every round so far, and `run_lock` keeps two processes from training it at once.  A
sweep stores its answers so far in the same way.
"""

from __future__ import annotations

from topline.storage.runs.checkpoints import Checkpoint, latest_checkpoint, save_checkpoint
from topline.storage.runs.history import HistoryReader, HistoryWriter, check_history, finish_run, read_history
from topline.storage.runs.records import (
    RunLock,
    RunRecord,
    SweepRecord,
    add_answer,
    create_run,
    create_sweep,
    finish_sweep,
    list_runs,
    list_sweeps,
    read_answers,
    read_run,
    read_sweep,
    run_lock,
    run_names,
    sweep_folder,
)
