"""Checks of an installation: versions, threads, a training, a store, a cluster, and what others contribute.

`run_checks` runs each in a process of its own with a deadline and returns a `CheckResult` that says what
fixes a failure.  A package adds checks through the entry point group "topline.checks".
"""

from __future__ import annotations

from topline.pipeline.doctor.runner import DEADLINE, Check, CheckFailedError, CheckResult, run_checks
