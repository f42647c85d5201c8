"""What a container of ours sees, as a root of its own for a process of this machine.

That is the image (Python with Topline, the system's programs, `deploy`), the volumes that it is given, and
nothing else of the machine; a root that cannot be written where its manifest says so; and the environment of
the image and the manifest alone.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BARE = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/dev", "/proc", "/sys")
POSTGRES = "$(ls -d /usr/lib/postgresql/*/bin | tail -1)"


@dataclass(frozen=True)
class Mount:
    """A file or folder of this machine at a place of the container; without a source a folder in memory."""

    target: str
    source: Path | None = None
    read_only: bool = False

    def commands(self) -> list[str]:
        """Return the commands that mount it below $root."""
        there = f"$root{self.target}"
        if self.source is None:
            return [f"mkdir -p {there}; mount -t tmpfs -o mode=0777 tmpfs {there}"]
        made = f"[ -e {there} ] || touch {there}" if self.source.is_file() else f"mkdir -p {there}"
        found = [f"mkdir -p $(dirname {there}); {made}", f"mount --bind {self.source} {there}"]
        return [*found, f"mount -o remount,bind,ro {there}"] if self.read_only else found


def image_environment() -> dict[str, str]:
    """Return what the Dockerfile sets."""
    text = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", " ")
    stages = text.split("\nFROM ")[-1]
    pairs = [
        word.split("=", 1)
        for line in re.findall(r"^ENV (.*)$", stages, re.MULTILINE)
        for word in line.split()
    ]
    environment = {name: value.replace("$PATH", "/usr/local/bin:/usr/bin:/bin") for name, value in pairs}
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    return environment


def made_root(mounts: Iterable[Mount], *, read_only: bool) -> list[str]:
    """Return the commands that make the root of a container at $root, in a mount namespace of its own."""
    lines = ["set -eu", "umask 022", "root=$(mktemp -d)", "mount -t tmpfs tmpfs $root"]
    for place in BARE:
        if Path(place).is_symlink():
            lines.append(f"ln -s {Path(place).readlink()} $root{place}")
        elif Path(place).is_dir():
            lines.append(f"mkdir -p $root{place}; mount --rbind {place} $root{place}")
    # Where this machine has the image's Python and sources, and where the image has them.
    ours = [Mount(place, Path(place)) for place in sorted({sys.prefix, sys.base_prefix, str(ROOT)})]
    ours += [Mount("/opt/topline", Path(sys.prefix)), Mount("/srv/topline/deploy", ROOT / "deploy")]
    lines += [line for mount in [*ours, *mounts] for line in mount.commands()]
    if read_only:
        lines.append("mount -o remount,ro $root")
    return lines


def in_image(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the words that run a command inside of a root as the image does, with this environment alone."""
    pairs = [f"{name}={value}" for name, value in environment.items()]
    script = ["sh", "-c", 'cd /srv/topline; exec "$@"', "sh", *command]
    return shlex.join(["/usr/bin/env", "-i", *pairs, *script])
