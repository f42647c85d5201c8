"""A walk that damages every file of a finished store: `python -m tests.pipeline.damaged_stores`.

Each file is flipped in one bit, cut in half, deleted, and exchanged for another file of its kind, and every
time `topline fsck` must name it.  The table that it prints counts files and damages by kind.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from topline.pipeline.cli import main as command_line
from topline.storage.records import Finding
from topline.storage.stores import Store, open_store
from topline.storage.verification import verify_store

DAMAGES = ("flipped", "cut", "deleted", "exchanged")
#: What says who works at this moment, and documents that `topline` writes and never reads.
NOT_RECORDS = re.compile(
    r"^(leases/.*\.(beat|done|lock)|runs/[^/]+/lock|reports/.*|sweeps/[^/]+/sweep\.html)$"
)


class Damaged(NamedTuple):
    """One damage to one file, and what fsck said."""

    path: str
    damage: str
    findings: list[Finding]

    @property
    def noticed(self) -> bool:
        """Whether a finding names the file, or what it belongs to."""
        return any(
            self.path == finding.path
            or self.path.startswith(f"{finding.path}/")
            or self.path.removesuffix(".json") == finding.path.removesuffix(".head")
            or (self.damage == "deleted" and finding.path.startswith(self.path.removesuffix(".json")))
            for finding in self.findings
        )


def finished_store(folder: Path) -> Store:
    """Return a store with two datasets, three models, one deleted, decisions, a sweep and cached results."""
    rng = np.random.default_rng(0)
    store = str(folder / "store")
    for name, classes in (("one", 4), ("two", 3)):
        y = np.arange(48) % classes
        np.save(folder / f"{name}-y.npy", y)
        X = np.eye(classes)[y] + 0.6 * rng.standard_normal((48, classes))
        np.save(folder / f"{name}-X.npy", X.astype(np.float32))
        data = ("--features", str(folder / f"{name}-X.npy"), "--labels", str(folder / f"{name}-y.npy"))
        topline("import", *data, "--store", store, "--test-share", "0.25", "--calibration-share", "0.25")
        topline("train", "--store", store, "--loss", "topk_hinge", "--k", "2")
    topline("train", "--store", store, "--loss", "max_hinge", "--kernel", "rbf")
    topline("train", "--store", store, "--C", "2")
    for number in (1, 2, 3):
        topline("evaluate", f"{store}/models/m000{number}")
    topline("models", "promote", f"{store}/models/m0001")
    topline("models", "promote", f"{store}/models/m0003", "--force", "--reason", "a test")
    topline("models", "delete", f"{store}/models/m0004", "--reason", "a test")
    topline("sweep", "--store", store, "--C", "0.1,1", "--k", "2", "--topk", "1", "--folds", "2")
    return open_store(store)


def topline(*words: str) -> None:
    """Run a command, which must succeed."""
    try:
        command_line(list(words))
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(f"topline {' '.join(words)} ended with {ended.code}") from ended


def kind_of(path: str) -> str:
    """Return a path with its numbers and keys left out."""
    return re.sub(r"[0-9a-f]{8,}|\d+", "#", path)


def walk(store: Store, paths: list[str], *, deep: bool = True) -> Iterator[Damaged]:
    """Yield every damage to every one of `paths`, each mended again before the next."""
    contents = {path: store.read_bytes(path) for path in store.walk()}
    for path in paths:
        whole = contents[path]
        for damage in DAMAGES:
            if damage == "exchanged":
                others = [other for other in contents if kind_of(other) == kind_of(path)]
                changed = next((contents[other] for other in others if contents[other] != whole), None)
            elif damage == "cut":
                changed = whole[: len(whole) // 2]
            else:
                middle = len(whole) // 2
                changed = whole[:middle] + bytes([whole[middle] ^ 4]) + whole[middle + 1 :] if whole else None
            if damage == "deleted":
                store.delete(path)
            elif changed is None or changed == whole:
                continue
            else:
                store.write_bytes(path, changed)
            yield Damaged(path, damage, verify_store(store, deep=deep))
            store.write_bytes(path, whole)


def record_paths(store: Store) -> list[str]:
    """Return the files that somebody reads again."""
    return [path for path in store.walk() if not NOT_RECORDS.match(path)]


def main() -> None:
    """Print the table; the exit status is 1 where a damage went unnoticed."""
    tried: Counter[str] = Counter()
    silent: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        store = finished_store(Path(folder))
        paths = record_paths(store)
        for damaged in walk(store, paths):
            tried[kind_of(damaged.path)] += 1
            if not damaged.noticed:
                silent[kind_of(damaged.path)] += 1
                print(f"unnoticed: {damaged.path} {damaged.damage}: {[str(f) for f in damaged.findings]}")
    for kind, count in sorted(tried.items()):
        print(f"{count:5d} damages, {silent[kind]:3d} unnoticed  {kind}")
    print(f"{sum(tried.values())} damages to {len(paths)} files, {sum(silent.values())} unnoticed")
    sys.exit(1 if silent else 0)


if __name__ == "__main__":
    main()
