"""Make `store-2.tar.gz`: a store whose datasets have format version 2, by the code that first wrote it.

The store has a dataset, a model of each kind of certificate
with evaluations, two decisions, a run that stopped short of its tolerance and a finished sweep.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile

import numpy as np

COMMAND = (sys.executable, "-c", "from topline.pipeline.cli import main; main()")


def topline(*words: str) -> None:
    """Run a command."""
    subprocess.run([*COMMAND, *words], check=True, stdout=subprocess.DEVNULL)


def without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out whose files they were."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def main() -> None:
    """Write features and labels, fill the store, and pack it."""
    rng = np.random.default_rng(0)
    y = np.arange(48) % 4
    X = np.eye(4)[y] + 0.6 * rng.standard_normal((48, 4))
    np.save("X.npy", X.astype(np.float32))
    np.save("y.npy", y)
    topline("import", "--features", "X.npy", "--labels", "y.npy", "--store", "store", "--test-share", "0.25")
    train = ("train", "--store", "store", "--C")
    topline(*train, "1", "--loss", "topk_hinge", "--k", "2", "--transforms", "standardize")
    topline(*train, "1", "--loss", "max_hinge", "--smoothing", "0.1")
    topline(*train, "1", "--loss", "max_hinge", "--average-top", "0.5")
    topline("evaluate", "store/models/m0001")
    topline("evaluate", "store/models/m0002")
    topline("models", "promote", "store/models/m0001")
    topline("models", "promote", "store/models/m0002")
    topline(*train, "10", "--loss", "topk_hinge", "--k", "2", "--max-passes", "4")
    topline("sweep", "--store", "store", "--C", "0.1,1", "--k", "2", "--topk", "1", "--folds", "2")
    with tarfile.open("store-2.tar.gz", "w:gz") as packed:
        packed.add("store", filter=without_owner)


if __name__ == "__main__":
    main()
