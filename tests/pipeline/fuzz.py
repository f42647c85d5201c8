"""Damaged inputs and random command lines: `python -m tests.pipeline.fuzz [--inputs 300] [--lines 200]`.

A sound file of every format that a command reads is cut, flipped, zeroed, repeated and overwritten, and the
command is run on it in a process of its own; then come command lines of random options and values.  Each must
end by itself, with a sentence where something is wrong: no traceback, no "fault in topline", not more than
20 s and 2 GiB.  The table counts what they ended with.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import signal
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

#: Processor time of a case, for the clock says more of the machine; and what counts as hanging.
SECONDS, HANGING, KIBIBYTES = 20.0, 300.0, 2 << 20
FORBIDDEN = ("Traceback (most recent call last)", "fault in topline")
#: Commands that serve until they are stopped, or start servers and processes of their own.
LASTING = {"serve", "dashboard", "doctor", "run", "retrain", "status"}
VALUES = (
    "", "-1", "0", "2", "nan", "-inf", "1e400", "0x10", "1_0", "\u0663", "nosuch", "/dev/null", "s3://",
    "ftp://x/y", "store",
    "store/models/m0001", "store/models/m0002", "store/models/champion", "X.npy", "y.npy", "a,b", "..",
    "max_hinge", "train", "test", "hog", "auto", "rbf", "1e-3", "x" * 3000, "\udcff", "{}", "--", "-h",
)  # fmt: skip


#: What is counted of the files before they are damaged, all of which must be read.
SOUND = "sound files"


class Case(NamedTuple):
    """A command line, and the kind of input that it is counted under."""

    kind: str
    words: tuple[str, ...]


class Ended(NamedTuple):
    """How a case ended: exit status (a signal if negative), CPU seconds, peak memory in KiB, what it said."""

    case: Case
    status: int
    seconds: float
    peak: int
    said: str

    @property
    def faults(self) -> list[str]:
        """What is wrong with it."""
        found = [word for word in FORBIDDEN if word in self.said]
        if self.case.kind == SOUND and self.status:
            found.append("refused a sound file")
        if self.seconds > SECONDS:
            found.append(f"took {self.seconds:.0f} s")
        if self.peak > KIBIBYTES:
            found.append(f"took {self.peak / 2**20:.1f} GiB")
        if self.status < 0:
            found.append(f"ended by signal {-self.status}")
        return found


def sound_inputs(folder: Path) -> dict[str, tuple[Path, Callable[[str], tuple[str, ...]]]]:
    """Write a sound file of every format; give each with the command line that reads one of it."""
    import h5py
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image
    from scipy.sparse import csr_matrix, save_npz

    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 6)).astype(np.float32), np.arange(40) % 4
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", y)
    np.savez_compressed(folder / "X.npz", X=X, y=y)
    save_npz(folder / "csr.npz", csr_matrix(np.where(X > 0.5, X, 0)))
    with h5py.File(folder / "X.h5", "w") as file:
        file.create_dataset("X", data=X, chunks=(10, 6), compression="gzip")
        file["y"] = y
    pq.write_table(pa.table({"features": list(X), "label": y}), folder / "X.parquet")
    pairs = (" ".join(f"{j + 1}:{v:.4g}" for j, v in enumerate(row)) for row in X)
    (folder / "X.svm").write_text("".join(f"{c} {own}\n" for c, own in zip(y, pairs, strict=True)))
    head = "@relation r\n" + "".join(f"@attribute f{j} numeric\n" for j in range(6))
    lines = "".join(",".join(f"{v:.4g}" for v in row) + f",c{c}\n" for row, c in zip(X, y, strict=True))
    (folder / "X.arff").write_text(f"{head}@attribute class {{c0,c1,c2,c3}}\n@data\n{lines}")
    (folder / "y.csv").write_text("label\n" + "".join(f"c{c}\n" for c in y))
    (folder / "t.toml").write_text(
        "[train]\nloss = 'topk_hinge'\nk = 2\nmax_passes = 3\n[cluster]\nworkers = 0\n"
    )
    for number in range(8):
        place = folder / "photos" / f"c{number % 2}" / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(place)
    first = folder / "photos" / "c0" / "0.png"
    Image.open(first).save(folder / "one.jpg")
    with tarfile.open(folder / "images.tar", "w") as packed:
        for number in range(8):
            for name, data in (
                (f"{number}.png", (folder / "photos" / f"c{number % 2}" / f"{number}.png").read_bytes()),
                (f"{number}.cls", str(number % 2).encode()),
            ):
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                packed.addfile(entry, io.BytesIO(data))
    write_network(folder / "net.onnx")

    def imported(path: str) -> tuple[str, ...]:
        return ("import", "--features", path, "--store", "new")

    def with_labels(path: str) -> tuple[str, ...]:
        return (*imported(path), "--labels", str(folder / "y.npy"))

    def labelled(path: str) -> tuple[str, ...]:
        return (*imported(str(folder / "X.npy")), "--labels", path)

    def extracted(path: str, backbone: str = "hog:size=24,cells=8") -> tuple[str, ...]:
        return ("extract", "--images", path, "--store", "new", "--backbone", backbone, "--workers", "0")

    def one_image(path: str) -> tuple[str, ...]:
        return ("predict", "store/models/m0001", "--images", path, "--top-k", "1")

    def network(path: str) -> tuple[str, ...]:
        inputs = ("--mean", "0,0,0", "--std", "1,1,1", "--channels", "RGB")
        return (*extracted(str(folder / "photos"), f"onnx:{path}"), *inputs)

    def configured(path: str) -> tuple[str, ...]:
        return ("train", "--store", "store", "--config", path)

    return {
        "npy": (folder / "X.npy", with_labels),
        "npy labels": (folder / "y.npy", labelled),
        "npz": (folder / "X.npz", imported),
        "npz csr": (folder / "csr.npz", with_labels),
        "HDF5": (folder / "X.h5", imported),
        "Parquet": (folder / "X.parquet", imported),
        "LIBSVM": (folder / "X.svm", imported),
        "ARFF": (folder / "X.arff", imported),
        "CSV": (folder / "y.csv", labelled),
        "tar": (folder / "images.tar", extracted),
        "PNG": (first, one_image),
        "JPEG": (folder / "one.jpg", one_image),
        "ONNX": (folder / "net.onnx", network),
        "TOML": (folder / "t.toml", configured),
    }


def write_network(path: Path) -> None:
    """Write a network that averages each channel of an image."""
    from onnx import TensorProto, helper, save

    shape = ["b", 3, 16, 16]
    node = helper.make_node("ReduceMean", ["images", "axes"], ["out"], keepdims=0)
    axes = helper.make_tensor("axes", TensorProto.INT64, [2], [2, 3])
    graph = helper.make_graph(
        [node], "net", [helper.make_tensor_value_info("images", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["b", 3])], [axes],
    )  # fmt: skip
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return the bytes with one damage of a random kind at a random place, more often near the head."""
    kind, place = rng.randrange(7), int(len(data) * rng.random() ** rng.choice((1, 3)))
    if kind == 0:
        return data[:place]
    if kind == 1:
        return data[:place] + bytes(rng.randrange(1, 64)) + data[place + 64 :]
    if kind == 2:
        return data[:place] + data[max(0, place - 40) :]
    if kind == 3:
        return data[:place] + rng.randbytes(rng.randrange(1, 20)) + data[place + 4 :]
    if kind == 4:
        return (
            data[:place]
            + rng.choice((b"0x10", b"1_0", b"1e40", "\u0663".encode(), b"-9", b"nan"))
            + data[place + 1 :]
        )
    flipped = bytearray(data)
    for _ in range(1 if kind == 5 else 8):
        flipped[min(len(flipped) - 1, place + rng.randrange(16))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def damaged_inputs(folder: Path, count: int, seed: int) -> Iterator[Case]:
    """Yield commands on damaged files, the formats in turn."""
    sound = sound_inputs(folder)
    yield from (Case(SOUND, command(str(path))) for path, command in sound.values())
    for number in range(count):
        kind = list(sound)[number % len(sound)]
        path, command = sound[kind]
        rng = random.Random(f"{seed} {number}")
        broken = folder / "broken" / f"{number}{path.suffix}"
        broken.parent.mkdir(exist_ok=True)
        broken.write_bytes(damaged(path.read_bytes(), rng))
        yield Case(kind, command(str(broken)))


def random_lines(count: int, seed: int) -> Iterator[Case]:
    """Yield command lines of a command that exists and random options and values."""
    import typer

    from topline.pipeline.cli.entry import app

    group = typer.main.get_command(app)
    commands = {(name,): own for name, own in group.commands.items() if name != "models"}
    models = group.commands["models"].commands
    commands |= {("models", name): own for name, own in models.items()}
    names = sorted(name for name in commands if name[0] not in LASTING)
    for number in range(count):
        rng = random.Random(f"line {seed} {number}")
        name = names[number % len(names)]
        words: list[str] = []
        for parameter in rng.sample(commands[name].params, min(3, len(commands[name].params))):
            if parameter.param_type_name == "argument":
                words.append(rng.choice(VALUES))
            elif parameter.name not in ("scheduler", "flow"):
                words += [rng.choice(parameter.opts), *([] if parameter.is_flag else [rng.choice(VALUES)])]
        if rng.random() < 0.2:
            words.insert(rng.randrange(len(words) + 1), rng.choice(VALUES))
        if any(option in str(commands[name].params) for option in ("--workers", "workers")):
            words += ["--workers", "0"]
        yield Case("command lines", (*name, *words))


def run(case: Case, folder: Path) -> Ended:
    """Run a case in a process of its own, that this one forks, and watch it."""
    said, begun = folder / "said", time.monotonic()
    child = os.fork()
    if child == 0:
        _run_here(case, said)
    status, usage = None, None
    while status is None:
        pid, code, used = os.wait4(child, os.WNOHANG)
        if pid:
            status, usage = os.waitstatus_to_exitcode(code), used
        elif time.monotonic() - begun > HANGING:
            os.kill(child, signal.SIGKILL)
            _, code, usage = os.wait4(child, 0)
            status = os.waitstatus_to_exitcode(code)
        else:
            time.sleep(0.005)
    text = said.read_text(encoding="utf-8", errors="replace") if said.exists() else ""
    peak = 0 if usage is None else usage.ru_maxrss
    busy = 0.0 if usage is None else usage.ru_utime + usage.ru_stime
    return Ended(case, status, busy, peak, text)


def _run_here(case: Case, said: Path) -> None:
    """Run a case and end this process with its status."""
    from topline.pipeline.cli import main as command_line

    status = 70
    with suppress(BaseException), said.open("w", encoding="utf-8", errors="replace") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        sys.stdout = sys.stderr = out
        try:
            command_line(list(case.words))
        except SystemExit as ended:
            status = int(ended.code or 0)
        except BaseException:
            import traceback

            traceback.print_exc()
    os._exit(status)


def every_case(inputs: int, lines: int, seed: int) -> Iterator[Ended]:
    """Run so many cases of both sorts in a folder that goes with them."""
    from topline.pipeline.cli import main as command_line

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        os.chdir(place)
        cases = list(damaged_inputs(place, inputs, seed))
        for words in (
            (
                "extract",
                "--images",
                "photos",
                "--store",
                "store",
                "--backbone",
                "hog:size=24,cells=8",
                "--workers",
                "0",
            ),
            ("train", "--store", "store", "--workers", "0", "--max-passes", "30"),
        ):
            with suppress(SystemExit):
                command_line(list(words))
        for case in [*cases, *random_lines(lines, seed)]:
            yield run(case, place)
        os.chdir("/")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the faults and the table; 1 if there was a fault."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=300)
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    counts: dict[str, Counter[str]] = {}
    worst = [0.0, 0]
    faults = 0
    for ended in every_case(options.inputs, options.lines, options.seed):
        sort = ended.case.kind
        counts.setdefault(sort, Counter())["fault" if ended.faults else f"exit {ended.status}"] += 1
        worst = [max(worst[0], ended.seconds), max(worst[1], ended.peak)]
        if ended.faults:
            faults += 1
            shown = " ".join(ended.case.words)[:300]
            print(f"{', '.join(ended.faults)}: topline {shown!a}\n  {ended.said[-300:]!a}", flush=True)
    for sort, found in counts.items():
        shown = ", ".join(f"{count} {word}" for word, count in sorted(found.items()))
        print(f"{sort:>14}  {sum(found.values()):4d}  {shown}")
    print(f"{options.inputs} inputs and {options.lines} command lines: {faults} faults", end="; ")
    print(f"the longest {worst[0]:.1f} s of processor time, the largest {worst[1] / 2**20:.2f} GiB")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
