"""The checks of `topline doctor` that need no Prefect; each gives a sentence or raises `CheckFailedError`."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import tempfile
import time
import unicodedata
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from topline.pipeline.doctor.runner import CheckFailedError
from topline.storage.errors import StorageError
from topline.storage.stores import Store, held_lease, open_store
from topline.storage.stores.urls import join, parse_url

GIB = LEAST_DISK = LEAST_MEMORY = 1 << 30

ELSEWHERE = "Use a folder on a local disk, or a bucket."
_REINSTALL_CODECS = "python -m pip install --force-reinstall numcodecs google-crc32c"

# Kernels of OpenBLAS for x86 whose vectors are narrower than those of AVX-512.
NARROW_KERNELS = frozenset({"Haswell", "Zen", "Sandybridge", "Nehalem", "Prescott"})

# An extra of ours, and a module that is there when it is installed.
EXTRAS = {"s3": "s3fs", "gcs": "gcsfs", "timm": "timm", "heif": "pillow_heif"}


def versions() -> str:
    """Compare what is installed with what topline declares, and the parts that must be of one version."""
    try:
        declared = requires("topline") or []
    except PackageNotFoundError:
        raise CheckFailedError(
            "topline is not installed, its files are only found", "python -m pip install -e ."
        ) from None
    wrong = mismatches(declared, installed_version)
    if installed_version("dask") != installed_version("distributed"):
        wrong["dask and distributed differ"] = f"distributed=={installed_version('dask')}"
    if wrong:
        pins = " ".join(f'"{pin}"' for pin in wrong.values())
        raise CheckFailedError("; ".join(wrong), f"python -m pip install {pins}")
    shown = ("numpy", "numba", "numcodecs", "dask", "prefect", "fastapi", "sqlalchemy")
    listed = ", ".join(f"{name} {installed_version(name)}" for name in shown)
    return f"Python {platform.python_version()}, {listed}"


def installed_version(name: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def mismatches(declared: Iterable[str], installed: Callable[[str], str | None]) -> dict[str, str]:
    """Map a sentence about each requirement that is not met to the pin that pip should be given.

    `declared` are requirements as in a distribution's metadata; those of extras are left out.
    """
    wrong = {}
    for requirement in map(Requirement, declared):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        found, pin = installed(requirement.name), _pin(requirement)
        if found is None:
            wrong[f"{requirement.name} is not installed"] = pin
        elif not requirement.specifier.contains(found, prereleases=True):
            wrong[f"{requirement.name} {found} is installed, topline needs {requirement.specifier}"] = pin
    return wrong


def _pin(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"


def threads() -> str:
    """Count the threads that BLAS and Numba would take, against the processors that are there."""
    import numba
    import numpy as np
    from threadpoolctl import threadpool_info

    # A product, so that BLAS is loaded for certain.
    (np.ones((8, 8), np.float32) @ np.ones((8, 8), np.float32)).sum()
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    if not pools:
        raise CheckFailedError(
            "NumPy's BLAS was not recognised, so its threads cannot be limited on workers",
            "python -m pip install --force-reinstall numpy",
        )
    most = max(pool["num_threads"] for pool in pools)
    if most > processors or numba.get_num_threads() > processors:
        raise CheckFailedError(
            f"BLAS takes {most} and Numba {numba.get_num_threads()} threads on {processors} processors",
            f"export OMP_NUM_THREADS={processors} NUMBA_NUM_THREADS={processors}",
        )
    blas = ", ".join(f"{pool['internal_api']} {pool['num_threads']}" for pool in pools)
    counted = f"{processors} processors; BLAS threads: {blas}; Numba threads: {numba.get_num_threads()}"
    return counted + narrow_products(pools)


def narrow_products(pools: Sequence[Mapping[str, Any]]) -> str:
    """Return a remark on products of half the width that the processor has, or nothing.

    OpenBLAS takes the kernels of an older processor where it does not know this one, or is told to.
    """
    import llvmlite.binding as llvm

    kernels = {str(pool.get("architecture")) for pool in pools if pool["internal_api"] == "openblas"}
    if not llvm.get_host_cpu_features().get("avx512f") or not kernels & NARROW_KERNELS:
        return ""
    told = os.environ.get("OPENBLAS_CORETYPE")
    do = f"unset OPENBLAS_CORETYPE, which is {told}" if told else "export OPENBLAS_CORETYPE=SkylakeX"
    names = ", ".join(sorted(kernels & NARROW_KERNELS))
    return f"; BLAS multiplies with the kernels of {names}, and this processor has AVX-512: {do}"


def solver() -> str:
    """Compile the inner loops and train a small top-2 classifier to a relative gap of 1e-3."""
    import numpy as np

    from topline.solvers.losses import TopKHinge
    from topline.solvers.run import solve

    rng = np.random.default_rng(0)
    y = rng.integers(0, 5, size=200)
    X = (rng.standard_normal((200, 8)) + 2.0 * np.eye(5, 8)[y]).astype(np.float32)
    begun = time.monotonic()
    result = solve(X, y, loss=TopKHinge(k=2), lam=0.05, tol=1e-3)
    if not result.relative_gap <= 1e-3:
        raise CheckFailedError(
            f"a small problem stopped at a relative gap of {result.relative_gap:.1e}",
            "python -m pip install --force-reinstall numpy scipy numba",
        )
    seconds = time.monotonic() - begun
    return f"loops compiled, a small problem solved to a gap of {result.relative_gap:.1e} in {seconds:.1f} s"


def store() -> str:
    """Write a dataset, read it back, flip one byte of it and see that reading notices."""
    import numpy as np
    import pyarrow as pa

    from topline.storage.arrays import ChunkPlan
    from topline.storage.datasets import Dataset, DatasetWriter
    from topline.storage.errors import IntegrityError

    X = np.random.default_rng(0).standard_normal((96, 16)).astype(np.float32)
    labels = np.arange(96, dtype=np.int32) % 3
    with tempfile.TemporaryDirectory(prefix="topline-doctor-") as folder:
        place = open_store(folder, create=True)
        writer = DatasetWriter.begin(place, "doctor", 16, np.float32, ChunkPlan(96, 96, 96), {})
        writer.write_unit(0, X, pa.table({"sample_id": [f"row-{i}" for i in range(96)]}))
        writer.commit(labels, np.zeros(96, np.int8), ("a", "b", "c"))
        if not np.array_equal(np.asarray(Dataset.open(place).rows(0, 96)), X):
            raise CheckFailedError("features read back differ from those written", _REINSTALL_CODECS)
        # The features are random numbers, which do not compress: theirs is the largest file.
        largest = max(Path(folder).rglob("*"), key=lambda path: path.stat().st_size)
        content = bytearray(largest.read_bytes())
        content[len(content) // 2] ^= 1
        largest.write_bytes(bytes(content))
        try:
            Dataset.open(place).rows(0, 96)
        except IntegrityError:
            return "a dataset was written and read back, and a flipped bit in it was noticed"
    raise CheckFailedError("a flipped bit in a stored dataset was not noticed", _REINSTALL_CODECS)


def cluster() -> str:
    """Start two worker processes on the loopback interface and run a task on each."""
    from topline.pipeline.cluster import known_workers, open_cluster
    from topline.pipeline.options import ClusterConfig

    begun = time.monotonic()
    with open_cluster(ClusterConfig(workers=2, dashboard=False), data_bytes=64 * GIB) as client:
        if client is None:
            raise CheckFailedError("two workers were asked for and none was given", "Report this as a fault.")
        started = time.monotonic() - begun
        addresses = list(known_workers(client))
        futures = [client.submit(os.getpid, workers=[address], pure=False) for address in addresses]
        processes = set(client.gather(futures, direct=False))
    if len(processes) != 2 or os.getpid() in processes:
        raise CheckFailedError(
            f"{len(processes)} worker processes answered, 2 were expected", "Report this as a fault."
        )
    return f"2 worker processes started in {started:.1f} s and each ran a task"


def space() -> str:
    """Check the free disk space here and for temporary files, and at the free memory."""
    import psutil

    memory = psutil.virtual_memory().available
    places = {"the working directory": Path.cwd(), "temporary files": Path(tempfile.gettempdir())}
    free = {f"{name} ({path})": shutil.disk_usage(path).free for name, path in places.items()}
    for name, left in free.items():
        if left < LEAST_DISK:
            raise CheckFailedError(
                f"{left / GIB:.2f} GiB are free for {name}",
                "Make room, or point TMPDIR and --store elsewhere.",
            )
    if memory < LEAST_MEMORY:
        raise CheckFailedError(
            f"{memory / GIB:.2f} GiB of memory are free", "End other programs or use a larger machine."
        )
    disk = ", ".join(f"{left / GIB:.1f} GiB for {name}" for name, left in free.items())
    return f"free: {disk}, {memory / GIB:.1f} GiB of memory"


def extras() -> str:
    """Return which optional parts are installed; none of them is needed."""
    found = {extra: importlib.util.find_spec(module) is not None for extra, module in EXTRAS.items()}
    return ", ".join(f"{extra} {'is' if there else 'not'} installed" for extra, there in found.items())


def place(url: str) -> str:
    """Write, name, lock and delete files where a store is or will be; return what its place can do."""
    try:
        with _folder_in(url) as store:
            _try_store(store)
            found = "" if store.local_path is None else _of_disk(store, store.local_path)
    except (StorageError, OSError) as error:
        raise CheckFailedError(" ".join(str(error).split()), ELSEWHERE) from error
    return f"{url}: files are written whole, names taken once, leases held{found}"


@contextmanager
def _folder_in(url: str) -> Iterator[Store]:
    """Yield a store in a folder of its own at the place, which goes again."""
    if parse_url(url).scheme != "file":
        store = open_store(join(url, f"doctor-{uuid.uuid4().hex[:12]}"), create=True)
        try:
            yield store
        finally:
            for path in store.walk():
                store.delete(path)
        return
    folder = Path(parse_url(url).root)
    if folder.exists():
        open_store(folder)  # which says where it is no folder
    there = next(path for path in (folder, *folder.parents) if path.is_dir())
    own = Path(tempfile.mkdtemp(prefix=".topline-doctor-", dir=there))
    try:
        yield open_store(own)
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _try_store(store: Store) -> None:
    """Do what every store must: replace files whole, let one of two take a name, hold a lease."""
    store.write_bytes("a", b"first")
    store.write_bytes("a", b"second")
    taken = [store.put_if_absent("b", word) for word in (b"one", b"two")]
    if store.read_bytes("a") != b"second" or taken != [True, False] or store.read_bytes("b") != b"one":
        raise CheckFailedError(f"{store.url} loses writes, or lets two writers take one name", ELSEWHERE)
    with held_lease(store, "doctor", "topline doctor") as lease:
        lease.check()
    if store.walk("nothing") or "a" not in store.list():
        raise CheckFailedError(f"{store.url} does not list what was written", ELSEWHERE)


def _of_disk(store: Store, folder: Path) -> str:
    """Return how a file system does that, and what else it does to names."""
    links = synced = True
    try:
        os.link(folder / "a", folder / "link")
    except OSError:
        links = False
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        synced = False
    finally:
        os.close(descriptor)
    with suppress(OSError):
        (folder / unicodedata.normalize("NFC", "é")).touch()
    found = {
        "by hard links" if links else "by renames, without hard links": True,
        "and locks of the kernel" if store.locks else "and heartbeats, without locks of the kernel": True,
        "folders are not synced, so that a power cut may undo the last write": not synced,
        "names in other case are the same": (folder / "A").exists(),
        "accents change their form": unicodedata.normalize("NFD", "é") in os.listdir(folder),  # noqa: PTH208
        f"{shutil.disk_usage(folder).free / GIB:.1f} GiB free": True,
    }
    words = [said for said, holds in found.items() if holds]
    return f" {words[0]} {words[1]}; {'; '.join(words[2:])}"
