"""A reader who follows a guide: every shell command and snippet of it, as printed, from top to bottom.

The environment holds what a fresh account has and nothing else.  Each shell block runs in a shell of its own;
the Python blocks of a guide share one interpreter.  A comment `<!-- until: TEXT -->` before a block says that
its command runs until Ctrl-C: it is interrupted once it has printed TEXT on its terminal.  `<!-- stays: TEXT
-->` says that it goes on to the guide's end.
"""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from tests.free_ports import free_port

ROOT = Path(__file__).resolve().parents[2]
GUIDES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", *ROOT.glob("[!.]*/README.md"), *ROOT.glob("[!.]*/*/README.md"))
)
SECONDS = 900.0
PORTS = ("4200", "5000", "5432", "8786", "8787")

_FENCE = re.compile(
    r"^(?:<!-- (?P<how>until|stays): (?P<text>.*?) -->\n)?```(?P<language>\w+)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_INTERPRETER = """
import json, sys
names = {"__name__": "__main__"}
for line in sys.stdin:
    number, code = json.loads(line)
    exec(compile("\\n" * (number - 1) + code, sys.argv[1], "exec"), names)
    print("\\x04", flush=True)
"""


@dataclass(frozen=True)
class Block:
    """A block of a guide: language, text, first line, and the text after which it is interrupted."""

    language: str
    code: str
    line: int
    until: str | None = None
    stays: bool = False


def on_free_ports(text: str) -> str:
    """Return a guide whose ports are free ones of this machine."""
    for port in PORTS:
        text = re.sub(rf"\b{port}\b", str(free_port()), text)
    return text


def blocks_of(text: str) -> list[Block]:
    """Return the shell and Python blocks of a guide, in their order."""
    found = []
    for match in _FENCE.finditer(text):
        if match["language"] in ("sh", "python"):
            line = text.count("\n", 0, match.start("code")) + 1
            found.append(
                Block(match["language"], match["code"], line, match["text"], stays=match["how"] == "stays")
            )
    return found


class Reader:
    """Runs the blocks of one guide in `folder`, which looks like the root of a fresh checkout.

    `programs` holds stand-ins for programs that a test cannot have, and comes first on the path.
    """

    def __init__(self, guide: str, folder: Path, home: Path, programs: Path | None = None) -> None:
        self._guide = guide
        self._folder = folder
        # Numba looks for what is compiled beside the sources, and Prefect and Dask at home: nothing is set
        # for them.
        binaries = (
            f"{programs}:{Path(sys.executable).parent}" if programs else str(Path(sys.executable).parent)
        )
        self._environ = {
            "PATH": f"{binaries}:/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8", "TERM":
            "xterm",
        }  # fmt: skip
        if "PYTHONPATH" in os.environ:
            self._environ["PYTHONPATH"] = os.environ["PYTHONPATH"]
        for entry in ROOT.iterdir():
            if not entry.name.startswith(".") or entry.name in (".ci", ".github", ".package"):
                (folder / entry.name).symlink_to(entry)
        (folder / ".venv").symlink_to(sys.prefix)
        self._python: subprocess.Popen[str] | None = None
        self._programs: list[tuple[subprocess.Popen[bytes], _Screen]] = []

    def enter(self, folder: str) -> None:
        """Go on in a folder of the checkout, in which files can be made."""
        parent = self._folder
        for part in Path(folder).parts:
            place = parent / part
            held = list(place.resolve().iterdir())
            place.unlink()
            place.mkdir()
            for entry in held:
                (place / entry.name).symlink_to(entry)
            parent = place
        self._folder = parent

    def run(self, block: Block) -> None:
        """Run one block; AssertionError with its output where it fails."""
        if block.language == "python":
            self._run_python(block)
        elif block.until is not None:
            self._run_until(block, block.until)
        else:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.code],
                cwd=self._folder, env=self._environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, timeout=SECONDS, check=False,
            )  # fmt: skip
            assert done.returncode == 0, (
                f"{self._where(block)} ended with {done.returncode}:\n{done.stdout[-4000:]}"
            )

    def close(self) -> None:
        """End the interpreter and the programs that stay."""
        while self._programs:
            self._end(*self._programs.pop())
        if self._python is not None:
            # On the way out of the context its pipes are closed, and its end is waited for.
            with self._python:
                pass

    def _where(self, block: Block) -> str:
        return f"{self._guide}:{block.line}\n{block.code}"

    def _run_python(self, block: Block) -> None:
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-W", "error", "-c", _INTERPRETER, self._guide], cwd=self._folder,
                env=self._environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True,
            )  # fmt: skip
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps([block.line, block.code]) + "\n")
        self._python.stdin.flush()
        printed = ""
        for line in self._python.stdout:
            if line == "\x04\n":
                return
            printed += line
        raise AssertionError(f"{self._where(block)} failed:\n{printed[-4000:]}")

    def _run_until(self, block: Block, text: str) -> None:
        """Run a command on a terminal until it has printed `text`; press Ctrl-C there unless it stays."""
        terminal, theirs = pty.openpty()
        *before, last = block.code.rstrip().split("\n")
        script = "\n".join([*before, f"exec {last}"])
        program = subprocess.Popen(
            # Whoever runs the tests in the background has Ctrl-C ignored, and so would the command.
            ["env", "--default-signal=INT", "bash", "-euo", "pipefail", "-c", script],
            cwd=self._folder, env=self._environ, stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        screen = _Screen(terminal)
        self._programs.append((program, screen))
        try:
            appeared = screen.shows(text, SECONDS)
            assert appeared, (
                f"{text!r} did not appear; {self._where(block)} printed:\n{screen.text()[-4000:]}"
            )
            if not block.stays:
                program.send_signal(signal.SIGINT)
                code = program.wait(SECONDS)
                assert code in (0, 130, -signal.SIGINT), (
                    f"ended with {code}; {self._where(block)}:\n{screen.text()}"
                )
        finally:
            if not block.stays:
                self._end(*self._programs.pop())

    def _end(self, program: subprocess.Popen[bytes], screen: _Screen) -> None:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()
        screen.close()


class _Screen:
    """What a program prints on its terminal, read by a thread so that the program never waits."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._printed = b""
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def text(self) -> str:
        """Return all that was printed; a narrow terminal breaks lines, so white space counts as one blank."""
        return " ".join(self._printed.decode(errors="replace").split())

    def shows(self, text: str, seconds: float) -> bool:
        """Wait until `text` was printed; False where the program ends first, or after `seconds`."""
        with self._changed:
            return (
                self._changed.wait_for(lambda: text in self.text() or self._ended, seconds)
                and text in self.text()
            )

    def close(self) -> None:
        """Wait until the program's end was read."""
        self._thread.join(10)
        os.close(self._terminal)

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._terminal, 1 << 16)
            except OSError:  # the last one who could write has gone
                piece = b""
            with self._changed:
                self._printed += piece
                self._ended = not piece
                self._changed.notify_all()
            if not piece:
                return
