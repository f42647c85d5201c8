"""Images to a stored dataset of features: list, choose a backbone, describe unit by unit, split, commit."""

from __future__ import annotations

import logging
import math
import os
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from topline.pipeline.backbones import (
    Backbone,
    backbone_of_spec,
    default_backbone,
    fitted_backbone,
    make_backbone,
)
from topline.pipeline.errors import ClusterError, ConfigError, RejectedShareError
from topline.pipeline.images import ImageItem, ImageListing, Wanted, list_images, sorted_names
from topline.pipeline.ingest.splits import (
    CONTENT_RULE,
    HeldOut,
    Ingested,
    RowSplits,
    parts_stored,
    recorded_splits,
    with_splits,
)
from topline.pipeline.ingest.unit import (
    Describer,
    KnownImages,
    StoppedError,
    UnitContext,
    Units,
    known_images,
    row_order,
)
from topline.pipeline.interrupts import StopFlag, stop_on_signals
from topline.pipeline.options import ClusterConfig, ExtractConfig
from topline.pipeline.progress import Progress, advance, begin
from topline.solvers.counts import how_many
from topline.storage.arrays import ChunkPlan
from topline.storage.datasets import (
    Dataset,
    DatasetInfo,
    DatasetWriter,
    RowFacts,
    discard_staged,
    find_by_key,
    list_datasets,
    staged,
    with_labels_and_splits,
)
from topline.storage.errors import NotFoundError
from topline.storage.records import digest_json
from topline.storage.stores import Store, open_store

if TYPE_CHECKING:
    from distributed import Client


logger = logging.getLogger(__name__)

LISTINGS = 3
"""So often images are listed, while folders are renamed or deleted under an extraction."""
_NAMED = 3
# Characters of a line's names; the first ones are shown however long they are.
_ROOM, _LEAST = 110, 3


def classes_found(listing: ImageListing) -> str:
    """Return how many classes there are, their names with numbers of images, and what may not be meant."""
    counts = Counter(item.label for item in listing.items if item.label is not None and not item.error)
    names = sorted_names(counts)
    found = f"{how_many(len(names), 'classes')} found: "
    found += _some([f"{name} {counts[name]:,}" for name in names])
    folders = {name.partition("/")[0] if "/" in name else "" for name in names}
    shared = folders.pop() if len(folders) == 1 else ""
    if shared:
        return f"{found}; all lie in {shared}/, which --images can name for shorter names"
    nested = next((name for name in names if "/" in name and listing.kind == "folder"), None)
    return found if nested is None else f"{found}; folders within folders are classes, such as {nested}"


def names_line(names: Sequence[str]) -> str:
    """Return the number of classes and their names, of many the first ones."""
    return f"{len(names):,}: {_some(names)}"


def _some(words: Sequence[str]) -> str:
    """Return words with commas between them, and how many are left out of a line."""
    ends = list(accumulate(len(word) + 2 for word in words))
    shown = max(_LEAST, bisect_right(ends, _ROOM))
    more = len(words) - shown
    return ", ".join(words[:shown]) + (f" and {more:,} more" if more > 0 else "")


def unnamed_backbone(config: ExtractConfig, listing: ImageListing, store: Store, *, follow: bool) -> Backbone:
    """Return the backbone that images get where nobody names one; says which, and why."""
    chosen = sorted(config.preprocessing()) + ["checkpoint"] * (config.checkpoint is not None)
    if chosen:
        flag = "--" + chosen[0].replace("_", "-")
        raise ConfigError(f"{flag} is about a network that is not named: name it with --backbone")
    specs = [info.features.get("backbone") for info in list_datasets(store) if follow]
    stored = next((spec for spec in reversed(specs) if isinstance(spec, Mapping)), None)
    if stored is not None:
        return backbone_of_spec(stored)
    choice = default_backbone(listing, config.limits)
    logger.info("backbone: %s, as %s; --backbone names another", choice.name, choice.reason)
    return make_backbone(config.model_copy(update={"backbone": choice.name}))


def vanished(listing: ImageListing) -> list[str]:
    """Return the listed images whose files are gone by now, and say so.

    What a table names and was refused from the start does not count, and members of an archive go with it
    alone.
    """
    gone = [item.path for item in listing.items if _is_gone(listing, item)]
    if gone:
        logger.warning(
            "%d of %d images are gone since they were listed (the first: %s): they are listed again",
            len(gone),
            len(listing.items),
            ", ".join(gone[:_NAMED]),
        )
    return gone


def _is_gone(listing: ImageListing, item: ImageItem) -> bool:
    place = listing.root / item.location
    if item.error:
        # A link to nothing is refused too, and is there.
        return listing.kind == "folder" and not os.path.lexists(place)
    return listing.kind != "shards" and not place.exists()


# A unit is what is lost when a worker dies and what the progress bar counts; a job should have many.
UNIT_IMAGES, SMALLEST_UNIT, UNITS_WANTED = 1024, 64, 32

# Starting worker processes takes several seconds: less work than this is done before they would be there.
CLUSTER_PAYS_SECONDS = 15.0

COMPARED = ["sample_id", "label", "split", "sha256", "status"]
LISTED_IMAGES = 100


@dataclass(frozen=True)
class ExtractResult(Ingested):
    """The dataset, rows per status, the first hundred rejected images, and how many were left out by rule."""

    statuses: dict[str, int]
    rejected: tuple[tuple[str, str], ...]
    ignored: int
    images_per_second: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        rejected = [{"path": path, "error": error} for path, error in self.rejected]
        return {**super().to_dict(), "rejected": rejected, "features": self.info.features.get("about")}


@dataclass(frozen=True, eq=False)
class _Job:
    """An extraction that is about to begin, or is done already (then the writer has its dataset)."""

    config: ExtractConfig
    listing: ImageListing
    writer: DatasetWriter
    describer: Describer
    begun: float


def extract(
    config: ExtractConfig,
    cluster: ClusterConfig | None = None,
    progress: Progress | None = None,
    client: Client | None = None,
    *,
    follow: bool = False,
    check: Callable[[ImageListing], None] | None = None,
    listings: int = LISTINGS,
) -> ExtractResult:
    """Extract features of all images that `config` names into a dataset of `config.store`.

    Where `config` names no backbone, one is chosen, or with `follow` it is that of the newest images.
    `check` gets the images before the first one is read, and may raise.  `cluster` says where (default: here
    if it is quickly done, or else one worker a core); an open `client` takes precedence.  Images whose
    content is known are not described again.  With `follow` every content stays in the split that it had, and
    where nothing has changed the newest version is the result.  Where too many images vanish meanwhile they
    are listed again, `listings` times at most.  Raises `InputError` without images, `RejectedShareError` if
    too many are bad, `InterruptedRunError` after Ctrl-C or with the cluster lost: called again, it continues.
    """
    job = _prepare(config, progress, check, follow=follow)
    if job.writer.committed is not None:
        return _result(job, job.writer.committed, reused=True)
    try:
        with stop_on_signals() as flag:
            done = _run_units(job, cluster or ClusterConfig(), client, progress, flag)
    except RejectedShareError:
        if listings <= 1 or not vanished(job.listing):
            raise
        job.writer.abandon()
        return extract(config, cluster, progress, client, follow=follow, check=check, listings=listings - 1)
    return _committed(job, done, follow=follow)


def _committed(job: _Job, done: int, *, follow: bool) -> ExtractResult:
    """Split the rows of all units, and make the dataset visible, unless it is what the newest one is."""
    table = pa.concat_tables(job.writer.manifest_of(unit) for unit in range(job.writer.units))
    newest = None if job.describer.known is None else job.describer.known.dataset
    recorded = recorded_splits(job.writer.store, newest.info.id if newest else None) if follow else None
    table, rows = with_splits(job.listing.items, table, job.config, recorded)
    if follow and newest is not None and _unchanged(newest, table, rows):
        job.writer.abandon()
        return _result(job, newest.info, reused=True, done=done)
    info = rows.commit(job.writer, table, follow=follow)
    return _result(job, info, reused=False, done=done)


def _prepare(
    config: ExtractConfig,
    progress: Progress | None,
    check: Callable[[ImageListing], None] | None,
    *,
    follow: bool,
) -> _Job:
    """Return the extraction: images listed, backbone made, and the dataset begun or found."""
    begun = time.monotonic()
    begin(progress, "list images")
    if config.images is None:
        raise ConfigError("--images is missing: name a folder with a folder for each class")
    named = None if config.backbone is None else make_backbone(config)
    from_folder = config.groups_from == "folder"
    wanted = Wanted(True, config.follow_links, config.groups, config.sample_weight, from_folder)
    listing = list_images(config.images, wanted).shuffled()
    if config.label_separator is None and not all(item.error for item in listing.items):
        logger.info("%s", classes_found(listing))
    if check is not None:
        check(listing)
    # Nothing is made in the store's place for a job that is refused.
    store = open_store(config.store, create=True)
    chosen = named or unnamed_backbone(config, listing, store, follow=follow)
    backbone = fitted_backbone(chosen, store, listing, config.limits, progress)
    about = f"{backbone.dim:,} features: {backbone.about()}"
    logger.info("%s", about)
    attributes = _attributes(config, listing, backbone)
    if follow:
        attributes["split_rule"] = CONTENT_RULE if not any(i.split for i in listing.items) else "given"
    known = known_images(store, attributes, config.dtype)
    key = "images-" + digest_json({**attributes, "items": listing.digest(), "dtype": config.dtype})
    n = len(listing.items)
    rows = min(UNIT_IMAGES, max(SMALLEST_UNIT, math.ceil(n / UNITS_WANTED)))
    plan = ChunkPlan.choose(n, backbone.dim, np.dtype(config.dtype).itemsize, max_shard_rows=rows)
    order = row_order(listing, plan, _base(store, key, known))
    # What is said of the features decides nothing, so that other words make no other dataset.
    described = {**attributes, "about": about}
    writer = DatasetWriter.begin(
        store, key, backbone.dim, config.dtype, order.plan, described, cuts=order.cuts, base=order.base
    )
    describer = Describer(listing.root, backbone, config.limits, known)
    return _Job(config, order.listing, writer, describer, begun)


def _base(store: Store, key: str, known: KnownImages | None) -> Dataset | None:
    """Return the dataset whose order the rows follow: that of an extraction which was begun before."""
    begun = staged(store, key)
    if begun is not None and find_by_key(store, key) is None:
        try:
            return None if begun["base"] is None else Dataset.open(store, begun["base"])
        except NotFoundError:
            # It was removed meanwhile, and nobody knows the order any more.
            discard_staged(store, key)
    return None if known is None else known.dataset


def _attributes(config: ExtractConfig, listing: ImageListing, backbone: Backbone) -> dict[str, Any]:
    """Return what decides the dataset besides the images themselves; a model trained on it records this."""
    return {
        "kind": "images",
        "images": str(listing.root),
        "source": listing.kind,
        "ignored": len(listing.ignored),
        "backbone": backbone.spec(),
        "limits": config.limits.model_dump(),
        **HeldOut.of(config).facts(),
        "duplicates": config.duplicates,
        **({"follow_links": True} if config.follow_links else {}),
        **config.row_facts(),
    }


def _unchanged(stored: Dataset, table: pa.Table, rows: RowSplits) -> bool:
    """Return whether a dataset has the same rows: names, contents, labels and splits."""
    if stored.class_names != rows.class_names or not stored.facts().same_as(rows.facts or RowFacts()):
        return False
    now = with_labels_and_splits(table, rows.labels, rows.split, rows.class_names)
    return bool(now.select(COMPARED).equals(stored.manifest().select(COMPARED)))


def _run_units(
    job: _Job, cluster: ClusterConfig, client: Client | None, progress: Progress | None, flag: StopFlag
) -> int:
    """Do all units that are not done; return the number of images that were described."""
    writer, total, rejected = job.writer, len(job.listing.items), 0
    finished = writer.done_units()
    left = [unit for unit in range(writer.units) if unit not in finished]
    skipped = sum(writer.bounds(unit).rows for unit in finished)

    def done(more: int) -> None:
        """Count the rejected images of a unit, and stop the job as soon as they are too many."""
        nonlocal rejected
        rejected += more
        if progress is not None and rejected:
            progress.note({"rejected": rejected})
        if rejected > job.config.max_bad_share * total:
            raise RejectedShareError(_too_many(job, rejected))

    done(sum(writer.manifest_of(unit)["status"].to_pylist().count("rejected") for unit in finished))
    begin(progress, "extract", total, "images")
    if skipped:
        advance(progress, skipped)
    context = UnitContext(writer, job.describer, job.config.batch)
    units = Units(context, job.listing.items, done, partial(advance, progress), flag)
    try:
        _run(units, left, cluster, client)
    except (StoppedError, ClusterError) as error:
        why = f"stopped by {flag.reason}" if isinstance(error, StoppedError) else str(error)
        raise parts_stored(writer, why) from error
    return total - skipped


def _run(units: Units, left: list[int], cluster: ClusterConfig, client: Client | None) -> None:
    waiting = iter(left)
    if client is not None:
        units.run_on(client, waiting, worker_wait=cluster.worker_wait)
        return
    store = units.context.writer.store
    if cluster.scheduler is None and (not cluster.workers or store.url.startswith("memory://")):
        # A store in memory is in this process alone; a job without a chosen number of workers may be small.
        forever = cluster.workers == 0 or store.url.startswith("memory://")
        budget = float("inf") if forever else CLUSTER_PAYS_SECONDS
        units.run_here(waiting, seconds=budget)
    rest = list(waiting)
    if rest:
        from topline.pipeline.cluster import open_cluster

        workers = cluster.workers and min(cluster.workers, len(rest))
        with open_cluster(cluster.model_copy(update={"workers": workers})) as own:
            if own is None:
                units.run_here(iter(rest))
            else:
                units.run_on(own, iter(rest), worker_wait=cluster.worker_wait)


def _too_many(job: _Job, rejected: int) -> str:
    writer, total = job.writer, len(job.listing.items)
    units = sorted(writer.done_units())
    rows = (row for unit in units for row in writer.manifest_of(unit).to_pylist())
    found = (f"{row['path']} ({row['error']})" for row in rows if row["status"] == "rejected")
    bad = list(islice(found, _NAMED))
    # Where no image could be used yet, more of them would end alike.
    all_bad = rejected >= sum(writer.bounds(unit).rows for unit in units)
    share = min(1.0, math.ceil(100 * rejected / total) / 100)
    allow = "" if all_bad else f", or allow more with --max-bad-share {share:g}"
    among = ", among them" if rejected > _NAMED else ""
    so_far = "" if len(units) == writer.units else " so far"
    return (
        f"{rejected} of {total} images ({rejected / total:.1%}) cannot be used{so_far}, more than"
        f" --max-bad-share {job.config.max_bad_share:g} allows{among}: {'; '.join(bad)};"
        f" repair or remove them{allow}"
    )


def _result(job: _Job, info: DatasetInfo, *, reused: bool, done: int = 0) -> ExtractResult:
    manifest = Dataset(job.writer.store, info).manifest().select(["path", "status", "error"])
    status = manifest["status"].to_pylist()
    rejected = [(row["path"], row["error"]) for row in manifest.to_pylist() if row["status"] == "rejected"]
    return ExtractResult.of(
        job.writer.store,
        info,
        job.begun,
        reused=reused,
        statuses={name: status.count(name) for name in ("ok", "rejected", "duplicate")},
        rejected=tuple(rejected[:LISTED_IMAGES]),
        ignored=len(job.listing.ignored),
        images_per_second=done / max(time.monotonic() - job.begun, 1e-9),
    )
