"""How a job's memory limit is shared among its processes, and what can be kept in it.

The limit covers all processes: the coordinator (with Dask's scheduler and nannies) and the workers.  Their
fixed needs are estimated from above, by measurement; a nanny still ends a worker that exceeds its share.  The
rest goes to features and dual variables, which work with any budget: features are read again, dual variables
packed and written to disk.
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

# Measured resident memory with everything imported and a method's kernels loaded, with a margin.
COORDINATOR_BYTES = 450 * MIB
WORKER_BYTES = 400 * MIB
# A job in one process without Dask, and what each of its threads reads at a time.
ALONE_BYTES = 380 * MIB
ALONE_READING_BYTES = 128 * MIB
# Simultaneous d x m float64 arrays besides the sums of blocks: W, the previous and the next one, the
# direction and the one being sent; in a worker W as received and as used, a product and its copy.
COORDINATOR_ARRAYS = 7
WORKER_ARRAYS = 8
# Copies of a second-order matrix while a block sums it, besides the sums of blocks.
FORMED_COPIES = 1
# Features, and unpacked dual variables, that are being read, converted and used.
READING_BYTES = 192 * MIB
# Labels, weights, norms and permutation of a row, always in memory.
ROW_BYTES = 96
# The few classes of a row that sweeps touch, if one block has all dual variables.
LISTED_BYTES = 128
# The same for a row of a kernel's blocks, which have neither norms nor a permutation.
KERNEL_ROW_BYTES = 48
# Workers are filled to this share: Dask ends one at 95 %.
FILLED = 0.85
# A running worker may have Dask's defaults and take no more tasks from 80 % on.
FILLED_THERE = 0.7
# Share of this machine's memory for a job without a limit.
MACHINE_SHARE = 0.8
# Features kept in memory by default without a limit: so much, or this share of this machine's memory.
FREE_CACHE, CACHE_SHARE = 1 << 30, 0.25
# Bytes per entry of dual variables and their change in float64.
WHOLE_DUALS = 16


@dataclass(frozen=True)
class ProblemSize:
    """n rows of d features, m classes, the number of blocks, and bytes of all features in float32.

    `keeps_duals` says whether dual variables are held, `method` what the method needs.  In bytes: `besides`
    is what the coordinator needs in addition, such as a kernel's matrix, `held` what all workers together do,
    such as scores of atoms, `row_bytes` each row's part.
    """

    n: int
    d: int
    m: int
    blocks: int
    features: int
    keeps_duals: bool
    method: MethodMemory = PLAIN
    besides: int = 0
    held: int = 0
    row_bytes: int = ROW_BYTES


@dataclass(frozen=True)
class MemoryPlan:
    """`worker_bytes` is Dask's limit per worker (None for threads or workers that are not ours).

    The others are budgets over all workers; `dual_bytes` and `kept_bytes` are None for no limit.
    """

    worker_bytes: int | None
    cache_bytes: int
    dual_bytes: int | None
    kept_bytes: int | None = None


def memory_limit(text: str | None) -> int | None:
    """Return the bytes of a limit such as "6GiB", None for none; raise `ConfigError` if it is not a size."""
    if text is None:
        return None
    try:
        return int(parse_bytes(text))
    except ValueError as error:
        raise ConfigError(f"memory limit {text!r} is not a size: write it as 4GiB or 500MB") from error


def worker_share(limit: int, workers: int) -> int:
    """Return the bytes per worker of a job other than training; raise `ConfigError` if they are too few."""
    share = (limit - COORDINATOR_BYTES) // workers
    if share < WORKER_BYTES:
        _refuse(limit, COORDINATOR_BYTES + workers * WORKER_BYTES, workers)
    return share


def room_for_rows(limit: int, workers: int | None, processes: int) -> int:
    """Return the bytes of `limit` that each process has for rows; negative if the process does not fit.

    `workers` is 0 for a job without Dask, `processes` is that of a job whose workers are threads.
    """
    if workers == 0:
        return limit - ALONE_BYTES
    if processes == 0:
        return limit - COORDINATOR_BYTES
    return int(FILLED * ((limit - COORDINATOR_BYTES) // processes)) - WORKER_BYTES


def plan_memory(
    limit: int | None, size: ProblemSize, workers: int, cache_bytes: int | None, *, processes: bool = True
) -> MemoryPlan:
    """Share `limit` bytes for a training run; raise `ConfigError` with the smallest limit if it is too small.

    Features get at most `cache_bytes`; None means all that a limit leaves.  Without `processes` the workers
    are threads of the coordinator.  A limit of None means most of this machine's memory, and is never
    refused.
    """
    coordinator, worker = _coordinator(size, workers), _worker(size, workers, processes=processes)
    cached = most_cached(cache_bytes, limit)
    least = coordinator + math.ceil(workers * worker / FILLED)
    if limit is None:
        share = (max(least, int(MACHINE_SHARE * MEMORY_LIMIT)) - coordinator) // workers
        return MemoryPlan(None, *_budgets(share, worker, size, workers, cached))
    if limit < least:
        _refuse(limit, least, workers)
    share = (limit - coordinator) // workers
    budgets = _budgets(share, worker, size, workers, cached)
    return MemoryPlan(share if processes else None, *budgets)


def plan_alone(
    limit: int | None, size: ProblemSize, threads: int, cache_bytes: int | None
) -> tuple[MemoryPlan, int]:
    """Share `limit` for training in one process without Dask; also return its threads, at most `threads`.

    Raises `ConfigError` with the smallest limit if not even one thread fits.
    """
    for count in range(max(1, threads), 0, -1):
        alone, own = _alone(size, count)
        least = alone + math.ceil(count * own / FILLED)
        if limit is None or least <= limit:
            break
    else:
        _refuse(limit or 0, least, 1)
    taken = max(least, int(MACHINE_SHARE * MEMORY_LIMIT)) if limit is None else limit
    cached = most_cached(cache_bytes, limit)
    return MemoryPlan(None, *_budgets((taken - alone) // count, own, size, count, cached)), count


def plan_on_workers(limits: Sequence[int], size: ProblemSize, cache_bytes: int | None) -> MemoryPlan:
    """Return budgets on running workers, from their own limits (0 for none); nothing is refused."""
    if not limits or min(limits) == 0:
        return MemoryPlan(None, FREE_CACHE if cache_bytes is None else cache_bytes, None)
    # Only workers with blocks get a budget.
    workers = min(len(limits), size.blocks)
    worker = _worker(size, workers, processes=True)
    cached = most_cached(cache_bytes, min(limits))
    return MemoryPlan(None, *_budgets(min(limits), worker, size, workers, cached, FILLED_THERE))


def _budgets(
    share: int, worker: int, size: ProblemSize, workers: int, cache_bytes: float, filled: float = FILLED
) -> tuple[int, int | None, int]:
    """Return bytes for features, for dual variables and for what the method keeps between requests.

    Each worker has `share` bytes and needs `worker` of them itself.
    """
    room = max(0, int(workers * (filled * share - worker)))
    duals = None
    if size.keeps_duals:
        whole = WHOLE_DUALS * size.n * size.m
        if size.blocks == 1:
            whole += extrapolation_bytes((size.n + size.d) * size.m)
        # Unpacked rows are faster if all fit; packed they need little, so features get half.
        if whole > 3 * room // 4:
            duals = room // 2
        room -= whole if duals is None else duals
    kept = min(size.method.kept, room // 2)
    return int(min(cache_bytes, room - kept)), duals, kept


def most_cached(cache_bytes: int | None, limit: int | None) -> float:
    """Return the most bytes of features to keep in memory, within a limit or, with None, without one."""
    if cache_bytes is not None:
        return cache_bytes
    return math.inf if limit is not None else max(FREE_CACHE, int(CACHE_SHARE * MEMORY_LIMIT))


def _coordinator(size: ProblemSize, workers: int) -> int:
    sums = 2 * ROOTS if workers > ROOTS else workers * _sums(size, workers)
    arrays = 8 * size.d * size.m * (COORDINATOR_ARRAYS + size.method.arrays + sums)
    # The formed matrix is factored in place.
    formed = 8 * size.method.formed * sums
    return COORDINATOR_BYTES + size.besides + arrays + formed + size.row_bytes // 2 * size.n


def _alone(size: ProblemSize, threads: int) -> tuple[int, int]:
    """Return the bytes that a single process needs, and those of each of its threads in addition."""
    spared = COORDINATOR_BYTES - ALONE_BYTES
    own = _worker(size, threads, processes=False) - min(READING_BYTES, 3 * size.features)
    return _coordinator(size, threads) - spared, own + min(ALONE_READING_BYTES, 3 * size.features)


def _worker(size: ProblemSize, workers: int, *, processes: bool) -> int:
    # Its own sums, and those of the workers to which it forwards calls.
    sums = _sums(size, workers) * (1 + min(-(-workers // ROOTS) - 1, ROOTS))
    arrays = 8 * size.d * size.m * (WORKER_ARRAYS + sums)
    arrays += 8 * size.method.formed * (FORMED_COPIES + sums)
    row_bytes = size.row_bytes
    row_bytes += LISTED_BYTES if size.keeps_duals and size.blocks == 1 else 0
    rows = -(-(size.n * row_bytes + size.held) // workers)
    reading = min(READING_BYTES, 3 * size.features)
    return (WORKER_BYTES if processes else 0) + arrays + reading + rows


def _sums(size: ProblemSize, workers: int) -> int:
    """Return the number of sums of blocks that a worker may hold before they merge along the tree."""
    return max(1, math.ceil(size.blocks / workers)).bit_length()


def _refuse(limit: int, least: int, workers: int) -> None:
    fits = -(-least // (100 * MIB)) * 100
    fewer = f", or use fewer than {workers} --workers" if workers > 1 else ""
    raise ConfigError(
        f"a memory limit of {limit / MIB:.0f} MiB for all processes together is too small for this job with"
        f" {how_many(workers, 'workers')}: give --memory-limit {fits}MiB or more{fewer}"
    )
