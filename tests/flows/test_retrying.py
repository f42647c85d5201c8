"""What is tried again, and what never is."""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import Any

import httpx
import pytest
from prefect import Task

from topline.flows.tasks import is_transient, repeatable
from topline.pipeline.errors import (
    ClusterError,
    ConfigError,
    InputError,
    InterruptedRunError,
    RejectedShareError,
)
from topline.solvers.errors import InvalidProblemError, NonFiniteError
from topline.storage.errors import AccessError, DiskFullError, IntegrityError, NotFoundError


@pytest.mark.parametrize(
    "error",
    [
        ClusterError("no worker"),
        AccessError("s3 is away"),
        ConnectionResetError("peer"),
        TimeoutError("slow"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_does_not_answer_may_answer_later(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("k"),
        InputError("no images"),
        RejectedShareError("too many"),
        InterruptedRunError("stopped by Ctrl-C"),
        InvalidProblemError("a label out of range"),
        NonFiniteError("NaN in row 3"),
        IntegrityError("rows 0-63"),
        NotFoundError("d0007"),
        DiskFullError("no room"),
        OSError(errno.ENOSPC, "no room"),
        PermissionError("read-only"),
        ValueError("anything else"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_bad_data_and_bad_options_stay_bad(error: Exception) -> None:
    assert not is_transient(error)


def test_a_store_that_refuses_permission_is_not_asked_again() -> None:
    error = AccessError("the store is read-only")
    error.__cause__ = PermissionError("denied")
    assert not is_transient(error)


def interrupted_by(cause: Exception) -> InterruptedRunError:
    error = InterruptedRunError("resume it")
    error.__cause__ = cause
    return error


def test_a_run_that_lost_its_scheduler_is_tried_again_and_one_without_room_is_not() -> None:
    assert is_transient(interrupted_by(ClusterError("the scheduler is gone")))
    assert is_transient(interrupted_by(AccessError("s3 is away")))
    assert not is_transient(interrupted_by(DiskFullError("no room")))
    assert not is_transient(interrupted_by(KeyboardInterrupt()))


LOST = httpx.ConnectError("the server was killed")


@pytest.mark.parametrize("lost_at", ["begin", "end"])
@pytest.mark.parametrize("failure", [None, InputError("no images"), RuntimeError("no memory")], ids=repr)
def test_a_server_that_is_lost_costs_the_record_of_a_step_alone(
    lost_at: str, failure: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def step(number: int) -> int:
        calls.append(number)
        if failure is not None:
            raise failure
        return 2 * number

    def engine(self: Task[[int], int], number: int) -> int:
        """Prefect's, with a server that is gone before the step, or when its outcome is to be reported."""
        with suppress(InputError, RuntimeError):
            if lost_at == "end":
                self.fn(number)
        raise LOST

    monkeypatch.setattr(Task, "__call__", engine)
    outcome: Any
    try:
        outcome = repeatable(step)(21)
    except Exception as error:
        outcome = error
    assert outcome == (42 if failure is None else failure)
    assert calls == [21], "the work is done once"
