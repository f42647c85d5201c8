"""How the memory that a job may take is shared among its processes, and what can be kept in it.

The limit is for all processes together: the coordinator (with Dask's scheduler and nannies in it) and the
workers.  What each needs at any rate is estimated here, from above, by what was measured; Dask's nannies end
a worker that exceeds its share all the same.  What is left goes to features and dual variables, which do
with any budget: the first are read again, the second packed and written to disk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dask.utils import parse_bytes
from distributed.system import MEMORY_LIMIT

from topline.pipeline.cluster.calls import ROOTS
from topline.pipeline.errors import ConfigError
from topline.solvers.blocks import extrapolation_bytes
from topline.solvers.counts import how_many
from topline.solvers.methods import PLAIN, MethodMemory

MIB = 1 << 20

# Resident memory with everything imported and the kernels of a method loaded, as measured, and some more.
COORDINATOR_BYTES = 450 * MIB
WORKER_BYTES = 400 * MIB
# A job in one process, without Dask, and what each of its threads reads at a time.
ALONE_BYTES = 380 * MIB
ALONE_READING_BYTES = 128 * MIB
# Arrays of d x m float64 that exist at the same time, besides the sums of blocks: W, the last and the next,
# the direction and what is on its way; in a worker W as it came and as it is used, a product and its copy.
COORDINATOR_ARRAYS = 7
WORKER_ARRAYS = 8
# Copies of a matrix of second order while a block sums it, besides the sums of blocks.
FORMED_COPIES = 1
# Features, and dual variables opened with them, that are read, converted and worked on.
READING_BYTES = 192 * MIB
# Labels, weights, norms and permutation of a row, wherever the rows are.
ROW_BYTES = 96
# The few classes of a row that sweeps touch, where one block has all dual variables.
LISTED_BYTES = 128
# The same of a row of a kernel's blocks, which have neither norms nor a permutation.
KERNEL_ROW_BYTES = 48
# Workers are filled up to this share: Dask ends one at 95 %.
FILLED = 0.85
# A worker that is there already may have Dask's defaults, by which it takes no more tasks from 80 % on.
FILLED_THERE = 0.7
# Of this machine's memory, where nobody says what a job may take.
MACHINE_SHARE = 0.8
# Dual variables and their change in float64 take so many bytes a number.
WHOLE_DUALS = 16


@dataclass(frozen=True)
class ProblemSize:
    """n rows of d features, m classes, the blocks they are cut into, and bytes of all features in float32.

    `keeps_duals` says whether dual variables are held, `ranked` how many classes are noted of a row, `method`
    what the method takes; `besides` are bytes that the coordinator needs for more, such as the matrix of a
    kernel, `held` those that all workers together do, such as the scores of atoms, and `row_bytes` those of a
    row wherever it is.
    """

    n: int
    d: int
    m: int
    blocks: int
    features: int
    keeps_duals: bool
    ranked: int = 1
    method: MethodMemory = PLAIN
    besides: int = 0
    held: int = 0
    row_bytes: int = ROW_BYTES


@dataclass(frozen=True)
class MemoryPlan:
    """`worker_bytes` is Dask's limit of each worker, the others are budgets over all workers.

    `worker_bytes` is None where workers are threads or not ours; `dual_bytes` and `kept_bytes` are None for
    what it takes.
    """

    worker_bytes: int | None
    cache_bytes: int
    dual_bytes: int | None
    kept_bytes: int | None = None


def memory_limit(text: str | None) -> int | None:
    """Bytes of a limit such as "6GiB", None for none; `ConfigError` for what is not a size."""
    if text is None:
        return None
    try:
        return int(parse_bytes(text))
    except ValueError as error:
        raise ConfigError(f"memory limit {text!r} is not a size: write it as 4GiB or 500MB") from error


def worker_share(limit: int, workers: int) -> int:
    """Bytes of each of the workers of a job that is not training; `ConfigError` where they are too few."""
    share = (limit - COORDINATOR_BYTES) // workers
    if share < WORKER_BYTES:
        _refuse(limit, COORDINATOR_BYTES + workers * WORKER_BYTES, workers)
    return share


def room_for_rows(limit: int, workers: int | None, processes: int) -> int:
    """Return the bytes of `limit` that each process has for rows, below 0 where not even it itself fits.

    `workers` are 0 for a job without Dask, `processes` for one whose workers are threads.
    """
    if workers == 0:
        return limit - ALONE_BYTES
    if processes == 0:
        return limit - COORDINATOR_BYTES
    return int(FILLED * ((limit - COORDINATOR_BYTES) // processes)) - WORKER_BYTES


def plan_memory(
    limit: int | None, size: ProblemSize, workers: int, cache_bytes: int, *, processes: bool = True
) -> MemoryPlan:
    """Share `limit` bytes out for a training; `ConfigError` naming the least limit where it is too small.

    `cache_bytes` is what was asked for and no more than that is given.  Without `processes` the workers are
    threads of the coordinator.  None as limit is most of this machine's memory, and refuses nothing.
    """
    coordinator, worker = _coordinator(size, workers), _worker(size, workers, processes=processes)
    least = coordinator + math.ceil(workers * worker / FILLED)
    if limit is None:
        share = (max(least, int(MACHINE_SHARE * MEMORY_LIMIT)) - coordinator) // workers
        return MemoryPlan(None, *_budgets(share, worker, size, workers, cache_bytes))
    if limit < least:
        _refuse(limit, least, workers)
    share = (limit - coordinator) // workers
    budgets = _budgets(share, worker, size, workers, cache_bytes)
    return MemoryPlan(share if processes else None, *budgets)


def plan_alone(
    limit: int | None, size: ProblemSize, threads: int, cache_bytes: int
) -> tuple[MemoryPlan, int]:
    """Share `limit` out for a training in one process without Dask; also return how many threads it can have.

    They are fewer than `threads` where memory asks for that.  `ConfigError` names the least limit where not
    even one fits.
    """
    for count in range(max(1, threads), 0, -1):
        alone, own = _alone(size, count)
        least = alone + math.ceil(count * own / FILLED)
        if limit is None or least <= limit:
            break
    else:
        _refuse(limit or 0, least, 1)
    taken = max(least, int(MACHINE_SHARE * MEMORY_LIMIT)) if limit is None else limit
    return MemoryPlan(None, *_budgets((taken - alone) // count, own, size, count, cache_bytes)), count


def plan_on_workers(limits: Sequence[int], size: ProblemSize, cache_bytes: int) -> MemoryPlan:
    """Budgets on workers that are there already, by their own limits (0 for none); nothing is refused."""
    if not limits or min(limits) == 0:
        return MemoryPlan(None, cache_bytes, None)
    # What is shared out goes to those that have blocks.
    workers = min(len(limits), size.blocks)
    worker = _worker(size, workers, processes=True)
    return MemoryPlan(None, *_budgets(min(limits), worker, size, workers, cache_bytes, FILLED_THERE))


def _budgets(
    share: int, worker: int, size: ProblemSize, workers: int, cache_bytes: int, filled: float = FILLED
) -> tuple[int, int | None, int]:
    """Bytes for features, for dual variables and for what the method keeps between its requests.

    Workers have `share` each and need `worker` of it.
    """
    room = max(0, int(workers * (filled * share - worker)))
    duals = None
    if size.keeps_duals:
        whole = WHOLE_DUALS * size.n * size.m
        if size.blocks == 1:
            whole += extrapolation_bytes((size.n + size.d) * size.m)
        # Rows that fit whole are the faster ones; packed they need little, and features get half.
        if whole > 3 * room // 4:
            duals = room // 2
        room -= whole if duals is None else duals
    kept = min(size.method.kept, room // 2)
    return min(cache_bytes, room - kept), duals, kept


def _coordinator(size: ProblemSize, workers: int) -> int:
    sums = 2 * ROOTS if workers > ROOTS else workers * _sums(size, workers)
    arrays = 8 * size.d * size.m * (COORDINATOR_ARRAYS + size.method.arrays + sums)
    # What is formed is factored in its place.
    formed = 8 * size.method.formed * sums
    return COORDINATOR_BYTES + size.besides + arrays + formed + size.row_bytes // 2 * size.n


def _alone(size: ProblemSize, threads: int) -> tuple[int, int]:
    """Return what a process alone takes at any rate, and each of its threads besides."""
    spared = COORDINATOR_BYTES - ALONE_BYTES
    own = _worker(size, threads, processes=False) - min(READING_BYTES, 3 * size.features)
    return _coordinator(size, threads) - spared, own + min(ALONE_READING_BYTES, 3 * size.features)


def _worker(size: ProblemSize, workers: int, *, processes: bool) -> int:
    # Its own, and those of the workers that it hands calls on to.
    sums = _sums(size, workers) * (1 + (-(-workers // ROOTS) - 1).bit_length())
    arrays = 8 * size.d * size.m * (WORKER_ARRAYS + sums)
    arrays += 8 * size.method.formed * (FORMED_COPIES + sums)
    row_bytes = size.row_bytes + 4 * size.ranked
    row_bytes += LISTED_BYTES if size.keeps_duals and size.blocks == 1 else 0
    rows = -(-(size.n * row_bytes + size.held) // workers)
    reading = min(READING_BYTES, 3 * size.features)
    return (WORKER_BYTES if processes else 0) + arrays + reading + rows


def _sums(size: ProblemSize, workers: int) -> int:
    """Sums of blocks that a worker can hold before they meet along the tree."""
    return max(1, math.ceil(size.blocks / workers)).bit_length()


def _refuse(limit: int, least: int, workers: int) -> None:
    fits = -(-least // (100 * MIB)) * 100
    fewer = f", or use fewer than {workers} --workers" if workers > 1 else ""
    raise ConfigError(
        f"a memory limit of {limit / MIB:.0f} MiB for all processes together is too small for this job with"
        f" {how_many(workers, 'workers')}: give --memory-limit {fits}MiB or more{fewer}"
    )
