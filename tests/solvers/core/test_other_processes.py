"""What is sent to workers, or kept in a file, can be read by a process that has compiled nothing."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np

from tests.solvers.problems import EVERY_LOSS, M
from topline import Softmax, TopKClassifier, solve
from topline.solvers.core.problem import Problem

READ = """
import pickle, sys
problems, result, model = pickle.load(sys.stdin.buffer)
assert all(problem.form.convex in (True, False) for problem in problems)
print(len(problems), result.status.value, model.predict(result.W.T[:1]).shape)
"""


def test_problems_results_and_models_are_read_by_another_process() -> None:
    problems = [Problem(loss, 10, 3, M, 0.1) for loss in EVERY_LOSS]
    # Compiled functions are made here, and are not for others.
    assert all(problem.form is problem.form for problem in problems)
    X, y = np.eye(3).repeat(4, axis=0), np.arange(3).repeat(4)
    sent = problems, solve(X, y, Softmax(), 0.1), TopKClassifier(loss="softmax").fit(X, y)
    read = subprocess.run(
        [sys.executable, "-c", READ], input=pickle.dumps(sent), capture_output=True, check=False
    )
    assert read.returncode == 0, read.stderr.decode()
    assert read.stdout.decode().split() == [str(len(problems)), "solved", "(1,)"]
