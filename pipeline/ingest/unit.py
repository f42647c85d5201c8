"""One unit of extraction: up to a thousand images become one shard, here or on Dask workers.

An earlier version of the dataset gives the features of known images, the order of rows, and the changes.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from topline.pipeline.backbones import Backbone, FeatureFunction, TwoStepFunction
from topline.pipeline.errors import ClusterError, ImageRejectedError
from topline.pipeline.images import ImageItem, ImageListing, Pixels, read_picture
from topline.pipeline.ingest.editing import EDITED
from topline.pipeline.interrupts import StopFlag
from topline.pipeline.options import ImageLimits
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import Dataset, DatasetWriter, list_datasets
from topline.storage.errors import IntegrityError, NotFoundError
from topline.storage.records import PlainRecord, digest_json
from topline.storage.stores import Store, open_store

if TYPE_CHECKING:
    from distributed import Client, Future

logger = logging.getLogger(__name__)

# What must be the same for features to be the same; the rest of the specification says how rows are split.
SAME = ("kind", "backbone", "limits")

_NONE, _LAST = b"", b"\xff" * 32


def _digests(digests: Sequence[str | None]) -> NDArray[Any]:
    """Return SHA-256 in hexadecimal as bytes (n,), `_NONE` for None."""
    return np.array([bytes.fromhex(digest or "") for digest in digests], dtype="S32")


class KnownImages:
    """Images that `dataset` has features of; pickles as its address, and is read once in each process."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __reduce__(self) -> tuple[object, ...]:
        return _reopened, (self.dataset.store.url, self.dataset.info.id)

    def rows_of(self, digests: Sequence[str | None]) -> NDArray[np.int64]:
        """Return for each SHA-256 the row with that content, -1 where there is none."""
        contents, rows = self._contents
        asked = _digests(digests)
        places = np.searchsorted(contents, asked)
        # Behind the last digest stands one that is not asked for.
        return np.where((contents[places] == asked) & (asked != _NONE), rows[places], -1)

    def sizes(self, rows: Sequence[int]) -> list[tuple[int | None, int | None]]:
        """Return width and height of the images in some rows."""
        found = self._manifest.take(pa.array(rows, pa.int64()))
        return list(zip(found["width"].to_pylist(), found["height"].to_pylist(), strict=True))

    @cached_property
    def _manifest(self) -> pa.Table:
        return self.dataset.manifest().select(["sha256", "status", "width", "height"])

    @cached_property
    def _contents(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Digests in ascending order, and their rows."""
        table = self._manifest
        good = pc.and_(pc.is_valid(table["sha256"]), pc.not_equal(table["status"], "rejected"))
        rows = np.flatnonzero(good.to_numpy())
        contents = _digests(table["sha256"].take(pa.array(rows)).to_pylist())
        order = np.argsort(contents, kind="stable")
        return np.append(contents[order], _LAST), np.append(rows[order], -1)


def known_images(store: Store, features: Mapping[str, Any], dtype: str) -> KnownImages | None:
    """Return the newest dataset of a store whose features were made like `features`; None without one."""
    alike = [
        info
        for info in reversed(list_datasets(store))
        if all(info.features.get(name) == features[name] for name in SAME)
        and (info.layout, info.dtype) == ("dense", dtype)
    ]
    if not alike:
        return None
    # A version that edits made has not all rows as the images have them.  Edits add none: where the version
    # before has fewer, what was edited is gone.
    whole = next((info for info in alike if not info.key.startswith(EDITED)), alike[0])
    info = whole if whole.n_rows >= alike[0].n_rows else alike[0]
    try:
        return KnownImages(Dataset(store, info))
    except (IntegrityError, NotFoundError) as error:
        logger.warning("features of %s are not used again: %s", info.id, error)
        return None


@lru_cache(maxsize=2)
def _reopened(url: str, dataset: str) -> KnownImages:
    return KnownImages(Dataset.open(open_store(url), dataset))


# Units of another size are worth cutting all rows anew: every row is then written once more.
_GROWTH = 4


@dataclass(frozen=True)
class RowOrder:
    """Images in the order of their rows, the plan of these, the cuts of the units, and whose order it is."""

    listing: ImageListing
    plan: ChunkPlan
    cuts: tuple[int, ...]
    base: str | None = None


def row_order(listing: ImageListing, plan: ChunkPlan, base: Dataset | None) -> RowOrder:
    """Return the rows of `listing` in the order of `base` as far as it has them.

    They are in their own order, cut by `plan`, where more than half of them are new or units should grow.
    """
    own = RowOrder(listing, plan, tuple(plan.unit_bounds()))
    if base is None or plan.shard_rows >= _GROWTH * base.info.shard_rows:
        return own
    try:
        units, new = _in_units_of(base, listing.items)
    except IntegrityError as error:
        logger.warning("rows are ordered anew: %s", error)
        return own
    if 2 * len(new) > len(listing.items):
        return own
    most = base.info.shard_rows
    pieces = [*filter(None, units), *(new[at : at + most] for at in range(0, len(new), most))]
    # Units at the end join while one has no more rows than those behind it, and all fit into one.
    while len(pieces) > 1 and len(pieces[-2]) <= min(len(pieces[-1]), most - len(pieces[-1])):
        pieces = [*pieces[:-2], pieces[-2] + pieces[-1]]
    followed = ChunkPlan(len(listing.items), base.info.chunk_rows, most)
    ordered = tuple(item for piece in pieces for item in piece)
    cuts = tuple(accumulate((len(piece) for piece in pieces), initial=0))
    return RowOrder(replace(listing, items=ordered), followed, cuts, base.info.id)


def _in_units_of(base: Dataset, items: Sequence[ImageItem]) -> tuple[list[list[ImageItem]], list[ImageItem]]:
    """Return the images of each unit of `base`, moved ones by name and size, and those that are new."""
    table = base.manifest().select(["sample_id", "path", "size"]).to_pylist()
    by_id = {item.sample_id: item for item in items}
    held = [by_id.pop(row["sample_id"], None) for row in table]
    moved: dict[tuple[str, int | None], list[ImageItem]] = {}
    for item in reversed(by_id.values()):
        moved.setdefault((PurePosixPath(item.path).name, item.size), []).append(item)
    for place, row in enumerate(table):
        if held[place] is None and row["path"] and row["size"] is not None:
            same = moved.get((PurePosixPath(row["path"]).name, row["size"]))
            if same:
                held[place] = same.pop()
                del by_id[held[place].sample_id]  # type: ignore[union-attr]
    units = [[item for item in held[slice(*unit.rows)] if item is not None] for unit in base.units]
    return units, list(by_id.values())


@dataclass(frozen=True)
class Changes(PlainRecord):
    """Images of a listing by path, against the version before; `described` had contents without features."""

    seen: int
    new: int
    changed: int
    gone: int
    described: int
    rejected: int

    @property
    def any(self) -> bool:
        """Whether anything has changed."""
        return bool(self.new or self.changed or self.gone)


def changes_between(before: pa.Table | None, now: pa.Table) -> Changes:
    """Return what the manifests of two versions differ in; without one before, everything is new."""
    names = ["path", "sha256", "class_name", "status"]
    rows = now.select(names).to_pylist()
    earlier = [] if before is None else before.select(names).to_pylist()
    then, images = (
        {row["path"]: (row["sha256"], row["class_name"]) for row in one} for one in (earlier, rows)
    )
    known = {row["sha256"] for row in earlier if row["status"] != "rejected"}
    good = [row for row in rows if row["status"] != "rejected"]
    return Changes(
        seen=len(rows),
        new=len(images.keys() - then.keys()),
        changed=sum(images[path] != then[path] for path in images.keys() & then.keys()),
        gone=len(then.keys() - images.keys()),
        described=sum(row["sha256"] not in known for row in good),
        rejected=len(rows) - len(good),
    )


Tick = Callable[[int], None]


@dataclass(eq=False)
class ImageRow:
    """A row of the manifest while it is made."""

    item: ImageItem
    size: int | None = None
    sha256: str | None = None
    width: int | None = None
    height: int | None = None
    error: str | None = None


@dataclass(frozen=True, eq=False)
class Describer:
    """Reads images below `root` and describes them by `backbone`, those of a `known` content excepted."""

    root: Path
    backbone: Backbone
    limits: ImageLimits
    known: KnownImages | None = None

    def describe(self, network: FeatureFunction, rows: Sequence[ImageRow]) -> NDArray[np.float32]:
        """Return features (b, dim) of the images of `rows`, 0 for rejected ones; fills in the rows."""
        return self._prepared(network, rows)()

    def describe_in_parts(
        self, network: FeatureFunction, rows: Sequence[ImageRow], batch: int
    ) -> Iterator[NDArray[np.float32]]:
        """Yield what `describe` returns for `batch` rows after the other.

        The next images are read, decoded and prepared in a thread beside the network.  A backbone that takes
        whole images gets none: they would lie in memory twice.
        """
        parts = [rows[start : start + batch] for start in range(0, len(rows), batch)]
        if not isinstance(network, TwoStepFunction):
            yield from (self.describe(network, part) for part in parts)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="decode") as beside:
            waiting = [beside.submit(self._prepared, network, part) for part in parts[:1]]
            for after in [*parts[1:], None][: len(parts)]:
                described = waiting.pop().result()
                if after is not None:
                    waiting.append(beside.submit(self._prepared, network, after))
                yield described()

    def _prepared(
        self, network: FeatureFunction, rows: Sequence[ImageRow]
    ) -> Callable[[], NDArray[np.float32]]:
        """Read and decode images, fill in their rows, and return a function that describes them."""
        X = np.zeros((len(rows), self.backbone.dim), dtype=np.float32)
        read = {i: data for i, row in enumerate(rows) if (data := self._read(row)) is not None}
        for i in self._recalled(rows, list(read), X):
            del read[i]
        pictures: list[Pixels] = []
        good: list[int] = []
        for i, data in read.items():
            try:
                picture = read_picture(data, self.limits, self.backbone.side)
                rows[i].width, rows[i].height, pixels = picture.width, picture.height, picture.pixels
                pictures.append(network.prepare(pixels) if isinstance(network, TwoStepFunction) else pixels)
                good.append(i)
            except ImageRejectedError as error:
                rows[i].error = str(error)

        def described() -> NDArray[np.float32]:
            if pictures:
                describe = network.describe if isinstance(network, TwoStepFunction) else network
                X[good] = describe(pictures)
            broken = np.flatnonzero(~np.isfinite(X).all(axis=1))
            X[broken] = 0.0
            for i in broken.tolist():
                rows[i].error = "the backbone gave features that are not finite"
            return X

        return described

    def _read(self, row: ImageRow) -> bytes | None:
        """Return the bytes of an image; None, with the reason in its row, where it is rejected."""
        try:
            data = row.item.read(self.root, self.limits.max_bytes)
        except ImageRejectedError as error:
            row.error = str(error)
            return None
        row.size = len(data)
        row.sha256 = hashlib.sha256(data).hexdigest()
        return data

    def _recalled(self, rows: Sequence[ImageRow], read: list[int], X: NDArray[np.float32]) -> list[int]:
        """Fill in what is known already, and return which rows that are."""
        if self.known is None or not read:
            return []
        earlier = self.known.rows_of([rows[i].sha256 for i in read])
        here = np.asarray(read, dtype=np.int64)[earlier >= 0]
        earlier = earlier[earlier >= 0]
        try:
            X[here] = self.known.dataset.take(earlier)
        except IntegrityError as error:
            logger.warning("images are described again: %s", error)
            return []
        for i, size in zip(here.tolist(), self.known.sizes(earlier.tolist()), strict=True):
            rows[i].width, rows[i].height = size
        found: list[int] = here.tolist()
        return found


@dataclass(frozen=True, eq=False)
class UnitContext:
    """The writer, the describer and the batch size, the same for all units of a dataset."""

    writer: DatasetWriter
    describer: Describer
    batch: int


def extract_unit(
    context: UnitContext, unit: int, items: Sequence[ImageItem], tick: Tick | None = None
) -> int:
    """Describe the images of `unit`, write its shard, return how many are rejected; harmless to repeat."""
    describer = context.describer
    network = open_backbone(describer.backbone)
    X = np.zeros((len(items), describer.backbone.dim), dtype=np.float32)
    rows = [ImageRow(item) for item in items]
    done = 0
    for part in describer.describe_in_parts(network, rows, context.batch):
        X[done : done + len(part)] = part
        done += len(part)
        if tick is not None:
            tick(len(part))
    context.writer.write_unit(unit, X, _manifest(rows))
    return sum(row.error is not None for row in rows)


_networks: dict[str, FeatureFunction] = {}
_opening = threading.Lock()


def open_backbone(backbone: Backbone) -> FeatureFunction:
    """Return the backbone's function of images, loaded once in each process."""
    key = digest_json(backbone.spec())
    with _opening:
        if key not in _networks:
            # One at a time: a network is large, and a job has one.
            _networks.clear()
            _networks[key] = backbone.open()
        return _networks[key]


def _manifest(rows: Sequence[ImageRow]) -> pa.Table:
    columns: dict[str, list[Any]] = {
        "sample_id": [row.item.sample_id for row in rows],
        "path": [row.item.path for row in rows],
        "sha256": [row.sha256 for row in rows],
        "size": [row.size for row in rows],
        "width": [row.width for row in rows],
        "height": [row.height for row in rows],
        "status": ["ok" if row.error is None else "rejected" for row in rows],
        "error": [row.error for row in rows],
    }
    kinds = {"size": pa.int64(), "width": pa.int32(), "height": pa.int32()}
    return pa.table(
        {name: pa.array(values, kinds.get(name, pa.string())) for name, values in columns.items()}
    )


POLL_SECONDS = 0.25
# Units in flight for each worker thread: one that runs and one that is there when it ends.
IN_FLIGHT = 2
# A cluster on which no unit ends for so long hangs, whatever its heartbeats say.
UNIT_SECONDS = 3600.0
# Who waits for a worker says so after this long.
TOLD_SECONDS = 10.0


class StoppedError(Exception):
    """The job was asked to stop; every unit that was done is stored."""


@dataclass(frozen=True, eq=False)
class Units:
    """Units of images that are still to be done; `done` gets how many of each are rejected."""

    context: UnitContext
    items: tuple[ImageItem, ...]
    done: Tick
    advance: Tick
    flag: StopFlag

    def images(self, unit: int) -> tuple[ImageItem, ...]:
        """Images of a unit."""
        span = self.context.writer.bounds(unit)
        return self.items[span.start : span.stop]

    def run_here(self, units: Iterator[int], *, seconds: float = float("inf")) -> float:
        """Run units one after the other, until one ends later than `seconds`; return the seconds spent.

        Raises `StoppedError` at the next batch of images once a stop is requested.
        """
        begun = time.monotonic()
        for unit in units:
            self.done(extract_unit(self.context, unit, self.images(unit), self._tick))
            if time.monotonic() - begun > seconds:
                break
        return time.monotonic() - begun

    def _tick(self, images: int) -> None:
        if self.flag:
            raise StoppedError
        self.advance(images)

    def run_on(self, client: Client, units: Iterator[int], *, worker_wait: float) -> None:
        """Run units on the client's workers; a unit whose worker dies is run again by another.

        Raises `StoppedError`, and `ClusterError` where workers are missing or killed, or nothing ends.
        """
        from distributed import wait

        pending: dict[Future[Any], int] = {}
        worker_seen, ended, told = time.monotonic(), time.monotonic(), False
        try:
            while not self.flag:
                threads, now = _threads(client), time.monotonic()
                worker_seen = now if threads else worker_seen
                if now - worker_seen > TOLD_SECONDS and not told:
                    told = True
                    logger.warning("there is no worker: waiting up to %g s", worker_wait)
                if now - worker_seen > worker_wait:
                    raise ClusterError(
                        f"no worker for {worker_wait:g} s: start workers, or wait longer (--worker-wait)"
                    )
                if pending and now - ended > UNIT_SECONDS:
                    raise ClusterError(f"none of {len(pending)} units ended within {UNIT_SECONDS:g} s")
                for unit in islice(units, max(0, IN_FLIGHT * max(1, threads) - len(pending))):
                    pending[self._submit(client, unit)] = unit
                if not pending:
                    return
                with suppress(TimeoutError), client.as_current():
                    wait(list(pending), timeout=POLL_SECONDS, return_when="FIRST_COMPLETED")
                for future in [future for future in pending if future.done()]:
                    unit, ended = pending.pop(future), time.monotonic()
                    if not self._taken_in(future, unit):
                        pending[self._submit(client, unit)] = unit
            raise StoppedError
        finally:
            if pending and client.status == "running":
                client.cancel(list(pending))

    def _submit(self, client: Client, unit: int) -> Future[Any]:
        return client.submit(extract_unit, self.context, unit, self.images(unit), pure=False)

    def _taken_in(self, future: Future[Any], unit: int) -> bool:
        """Take in a unit that has ended; return whether it was done, and raise what it failed with."""
        from distributed.scheduler import KilledWorker

        if future.status == "finished":
            self.done(future.result())
            self.advance(len(self.images(unit)))
        elif future.status == "error":
            error = future.exception()
            if not isinstance(error, KilledWorker):
                raise error or ClusterError(f"unit {unit} failed without a reason")
            items = self.images(unit)
            raise ClusterError(
                f"workers died again and again on the images {items[0].path} to {items[-1].path}: give them"
                " more memory (--memory-limit), or lower --max-pixels"
            )
        return bool(future.status == "finished")


def _threads(client: Client) -> int:
    """Return the threads of all workers."""
    from topline.pipeline.cluster import known_workers

    if client.status not in ("running", "connecting"):
        raise ClusterError(f"the connection to the scheduler is {client.status}")
    try:
        return sum(int(worker["nthreads"]) for worker in known_workers(client).values())
    except (OSError, TimeoutError) as error:
        raise ClusterError(f"the scheduler does not answer ({error})") from error
