"""What the kernel saw of an extraction and an export: nothing is looked up, and nothing is left behind.

`python -m tests.e2e.test_traces` prints a summary of the calls.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.pictures import write_classes

CALLS = "%network,openat,open,creat,mkdir,mkdirat,rename,renameat,renameat2,link,linkat,symlink,symlinkat"
#: Addresses that another machine may answer, and names that are asked for (port 53).
_ABROAD = re.compile(r"sa_family=AF_INET6?, (?!.*(?:\"127\.0\.0\.1\"|\"::1\"))")
_WRITTEN = re.compile(r"^(?:\d+ +)?(?P<call>open|creat|mkdir|rename|link|symlink)\w*\((?P<rest>.*)\) = \d")
COMMANDS = {
    "extract": "extract --images photos --store store --backbone efficientnet_lite0 --workers 0",
    "train": "train --store store --loss softmax --workers 0",
    "export": "export MODEL --output model.onnx --with-backbone",
}


def traced(folder: Path, name: str) -> list[str]:
    """Run a command with a home of its own in `folder`, and return the calls that it made."""
    words = COMMANDS[name].split()
    models = sorted((folder / "store" / "models").glob("m*"))
    words = [str(models[-1]) if word == "MODEL" else word for word in words]
    homes = {"HOME": folder / "home", "XDG_CACHE_HOME": folder / "cache", "TMPDIR": folder / "temporary"}
    for home in homes.values():
        home.mkdir(exist_ok=True)
    trace = folder / f"{name}.trace"
    subprocess.run(
        ["strace", "-f", "-qq", "-e", f"trace={CALLS}", "-o", trace, sys.executable, "-m", "topline", *words],
        cwd=folder,
        env={**os.environ, **{key: str(home) for key, home in homes.items()}, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
    )
    return trace.read_text(encoding="utf-8", errors="replace").splitlines()


def abroad(calls: list[str]) -> list[str]:
    """Return the calls that reach for another machine."""
    return [call for call in calls if _ABROAD.search(call) and not call.startswith("socket(")]


def written(calls: list[str], folder: Path) -> Iterator[Path]:
    """Yield the paths that calls made or opened for writing."""
    for found in filter(None, map(_WRITTEN.search, calls)):
        if found["call"] != "open" or re.search("O_(WRONLY|RDWR|CREAT)", found["rest"]):
            names = re.findall(r"\"([^\"]*)\"", found["rest"])
            yield from (Path(os.path.normpath(folder / name)) for name in names[-1:])


def outside(paths: Iterator[Path], folder: Path) -> list[Path]:
    """Return the paths that still exist outside the store, the cache and what was asked for.

    A first start also keeps compiled functions beside their sources, as Python does.
    """
    allowed = [
        folder / "store",
        folder / "cache",
        folder / "model.onnx",
        *map(Path, ("/dev", "/proc", "/sys")),
    ]
    kept = {path for path in paths if path.exists() and "__pycache__" not in path.parts}
    return sorted(path for path in kept if not any(path.is_relative_to(place) for place in allowed))


def trace_all(folder: Path) -> Iterator[tuple[str, list[str], list[str], list[Path]]]:
    """Yield each command with its calls, those abroad, and what it left outside its places."""
    write_classes(folder / "photos", 3, 200)
    for name in COMMANDS:
        calls = traced(folder, name)
        yield name, calls, abroad(calls), outside(written(calls, folder), folder)


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_nothing_is_looked_up_and_nothing_left_outside_the_store_and_the_cache(tmp_path: Path) -> None:
    for name, calls, elsewhere, left in trace_all(tmp_path):
        assert len(calls) > 100, name
        assert not elsewhere, name
        assert not left, name
    assert not any((tmp_path / "home").iterdir()), "no device id, no setting"
    assert not any((tmp_path / "temporary").iterdir())
    assert str(tmp_path).encode() not in (tmp_path / "model.onnx").read_bytes()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        for name, calls, elsewhere, left in trace_all(Path(place)):
            kinds = Counter(re.sub(r"^(\d+ +)?(\w+).*", r"\2", call) for call in calls)
            told = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common(8))
            sys.stdout.write(f"{name}: {len(calls):,} calls ({told}); abroad {len(elsewhere)}, left {left}\n")
