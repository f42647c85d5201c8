"""What simulated processes do: commands of the product as they are, and what each of them may count on.

An actor writes into the `Ledger` what it was promised; who is killed writes nothing, and whoever is refused
was promised nothing.  An error that no command may end with ends the history.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from tests.simulation.machine import SimulatedTime
from tests.simulation.versions import TODAY
from tests.simulation.world import Here, Violation
from topline.pipeline.errors import GuardError, InputError
from topline.pipeline.ingest.editing import Edits, edited_dataset, forget
from topline.storage.datasets import Dataset, read_catalog
from topline.storage.errors import IncompleteError, IntegrityError, NotFoundError
from topline.storage.models import read_standing
from topline.storage.retention import RetentionPolicy, prune

#: Said to the user, who tries again: the store did not do what it was asked for, or somebody else did.
REFUSED = ("AccessError", "DiskFullError", "ConflictError")
#: Said where what a decision is about is not there, or not as it has to be.
UNFIT = ("NotFoundError", "FormatError", "IncompleteError")
#: A pause that costs nobody a lease: its other calls go on.
_AWAKE = 40.0

Act = Callable[["Actor"], None]


@dataclass
class Ledger:
    """What was promised so far, by acts that were acknowledged."""

    records: dict[int, str] = field(default_factory=dict)
    tenures: dict[str, int] = field(default_factory=dict)
    given: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    holding: dict[str, Any] = field(default_factory=dict)
    saved: int = 0
    forgotten: set[str] = field(default_factory=set)
    #: Whether somebody forgets rows, which takes the bytes of all that held them at once.
    erasing: bool = False
    checked: int = 0

    def keep(self, seq: int, name: str) -> None:
        """Note that a record was acknowledged under a number."""
        self.checked += 1
        if self.records.setdefault(seq, name) != name:
            raise Violation(f"record {seq} was given to {self.records[seq]} and to {name}")


@dataclass
class Actor:
    """A process at work: its store, its own chance, and the ledger of all."""

    url: str
    chance: random.Random
    ledger: Ledger
    #: The version of the program that it runs.
    topline: Any

    @property
    def store(self) -> Any:
        return self.topline.open_store(self.url)

    @property
    def name(self) -> str:
        return Here.world.process.name

    def hold(self, condition: object, what: str) -> None:
        """Count an invariant that is looked at; `Violation` unless it holds."""
        self.ledger.checked += 1
        if not condition:
            raise Violation(f"{self.name}: {what}")


@contextmanager
def _attempt(actor: Actor, *more: str) -> Iterator[None]:
    """Let a command be refused; what an older version cannot read it may refuse too, by name."""
    errors, today = actor.topline.errors, actor.topline is TODAY
    allowed = tuple(getattr(errors, name) for name in REFUSED + more)
    allowed += (GuardError, InputError) if more else ()
    if Here.world.mixed:
        # The last one lets errors of its lock files through, and what it has begun today's one leaves alone.
        allowed += (errors.MismatchError,) if today else (OSError,)
    try:
        yield
    except allowed:
        return
    except errors.StorageError as error:
        if today and not (Here.world.mixed and _deleted_at_once(actor, error)):
            raise
        if not any(place in str(error) for place in (actor.url, "dataset ", "model ")):
            raise


def _deleted_at_once(actor: Actor, error: Exception) -> bool:
    """Return whether a file of a deleted model is missing: the last version leaves readers nothing."""
    gone = read_standing(actor.store).deleted
    return isinstance(error, IntegrityError) and any(f"model {name}" in str(error) for name in gone)


def append(actor: Actor) -> None:
    """Add records to a log in every way that there is, and read it."""
    for number in range(actor.chance.randint(1, 3)):
        with _attempt(actor):
            log, name = actor.topline.CommitLog(actor.store, "race"), f"{actor.name}.{number}"
            how = actor.chance.choice(["append", "append", "unique", "next", "revise"])
            if how == "append":
                actor.ledger.keep(log.append({"name": name}), name)
            elif how == "unique":
                key = actor.chance.choice("ab")
                actor.ledger.keep(log.append({"name": key, "key": key}, unique="key"), key)
            elif how == "next":
                seq = len(log.numbers()) + 1
                if log.append_as(seq, {"name": name}):
                    actor.ledger.keep(seq, name)
            elif log.numbers():
                made = log.revise(_after(name))
                actor.ledger.keep(made["seq"], name)
                actor.hold(made["after"] == made["seq"] - 1, "a revision was made on top of an older one")
        with _attempt(actor):
            read_log(actor)


def _after(name: str) -> Callable[[Mapping[str, Any], int], Mapping[str, Any]]:
    return lambda latest, _: {"name": name, "after": latest["seq"]}


def read_log(actor: Actor) -> None:
    """Read all records: they follow one another, and those that were promised before are among them."""
    known = dict(actor.ledger.records)
    found = {
        record["seq"]: record["name"] for record in actor.topline.CommitLog(actor.store, "race").records()
    }
    actor.hold(list(found) == list(range(1, len(found) + 1)), f"numbers are not in sequence: {list(found)}")
    wrong = {seq: name for seq, name in found.items() if known.get(seq, name) != name}
    actor.hold(not wrong, f"records {wrong} are not what was acknowledged")


def hold_lease(actor: Actor) -> None:
    """Hold a lease, and check it before each piece of work."""
    with (
        _attempt(actor),
        actor.topline.held_lease(
            actor.store, "retrain", actor.name, wait=actor.chance.choice([0.0, 90.0])
        ) as lease,
    ):
        _entered(actor, "retrain", lease.number)
        try:
            for _ in range(actor.chance.randint(1, 4)):
                begun = actor.ledger.tenures["retrain"]
                lease.check()
                actor.hold(lease.number >= begun, f"tenure {lease.number} is held, and {begun} was given")
                Here.world.sleep(actor.chance.choice([0.1, 1.0, 15.0, 45.0]))
        finally:
            _left(actor, "retrain")


def _entered(actor: Actor, name: str, number: int) -> None:
    """Note who holds a lease: nobody does who lives and was not away for long."""
    ledger = actor.ledger
    last = ledger.tenures.get(name, 0)
    actor.hold(number not in ledger.given[name], f"tenure {number} of {name} was given before")
    actor.hold(
        number > last or Here.world.process.away > _AWAKE, f"tenure {number} of {name} came after {last}"
    )
    ledger.given[name].add(number)
    ledger.tenures[name] = max(number, last)
    other = ledger.holding.get(name)
    alone = other is None or other.dead or other.away > _AWAKE
    # The last version looks whether it has lost the lease only when it is about to work.
    alone = alone or (actor.topline is not TODAY and Here.world.process.away > _AWAKE)
    actor.hold(alone, f"{other and other.name} holds {name}, and so does {actor.name}")
    ledger.holding[name] = Here.world.process


def _left(actor: Actor, name: str) -> None:
    if actor.ledger.holding.get(name) is Here.world.process:
        actor.ledger.holding[name] = None


def train(actor: Actor) -> None:
    """Go on with a run from its newest checkpoint, save some more, and publish a model now and then."""
    with _attempt(actor):
        store = actor.store
        with actor.topline.run_lock(store, "r0001") as held:
            _entered(actor, "r0001", actor.ledger.tenures.get("r0001", 0) + 1)
            try:
                saved = actor.ledger.saved
                found = actor.topline.latest_checkpoint(store, "r0001", fingerprint={"of": "r0001"})
                round_number = 0 if found is None else found.round
                seen = round_number >= saved or Here.world.process.listed_late
                actor.hold(seen, f"checkpoint {saved} was saved, and {round_number} is read")
                state = round_number if found is None else found.arrays["W"].item()
                actor.hold(state == round_number, f"checkpoint {round_number} holds the state of {state}")
                for number in range(round_number + 1, round_number + 1 + actor.chance.randint(1, 3)):
                    held.check()
                    arrays = {"W": np.full(1, number, np.float64)}
                    meta = {"fingerprint": {"of": "r0001"}}
                    actor.topline.save_checkpoint(store, "r0001", number, arrays, None, meta, held)
                    actor.ledger.saved = max(number, actor.ledger.saved)
            finally:
                _left(actor, "r0001")


def follow(actor: Actor) -> None:
    """Read the newest checkpoint of a run that others go on with, some times."""
    for _ in range(actor.chance.randint(1, 3)):
        with _attempt(actor):
            found = actor.topline.latest_checkpoint(actor.store, "r0001")
            state = None if found is None else found.arrays["W"].item()
            actor.hold(found is None or state == found.round, f"a checkpoint holds the state of {state}")


def publish(actor: Actor) -> None:
    """Publish a model, revise it, and decide on it."""
    with _attempt(actor, *UNFIT):
        topline = actor.topline
        url = topline.save_model(actor.store, model_record(actor), {"W": np.ones((1, 2))})
        topline.update_record(url, evaluation={"topk": {"1": 0.5}, "by": actor.name})
        actor.hold(topline.load_model(url).record.revision >= 2, "a revision is lost")
        topline.promote(url, reason="a test", force=True)
    look(actor)


def decide(actor: Actor) -> None:
    """Promote, roll back, pin, archive and delete models as they come."""
    for _ in range(actor.chance.randint(1, 2)):
        with _attempt(actor, *UNFIT):
            names = [record.id for record in actor.topline.list_models(actor.store)]
            if not names:
                return
            url = f"{actor.url}/models/{actor.chance.choice(names)}"
            how = actor.chance.choice(["promote", "promote", "rollback", "pin", "unpin", "archive", "delete"])
            if how == "promote":
                standing = actor.topline.promote(url, reason="a test", force=True)
                actor.hold(standing.champion == url.rpartition("/")[2], "another model was promoted")
            elif how == "rollback":
                actor.topline.rollback(actor.url)
            elif how == "delete":
                actor.topline.delete(url)
            else:
                actor.topline.mark(url, how, reason="a test")
        look(actor)


def look(actor: Actor) -> None:
    """Look at the champion as a service does that follows it: it loads as long as it is the champion."""
    with _attempt(actor):
        before = actor.topline.read_standing(actor.store).champion
        if before is None:
            return
        try:
            model = actor.topline.load_model(f"{actor.url}/models/{before}")
            actor.hold(model.array("W").shape == (1, 2), "the champion has other weights")
        except actor.topline.errors.NotFoundError as error:
            after = actor.topline.read_standing(actor.store)
            actor.hold(before in after.deleted, f"{before} is the champion, and cannot be loaded: {error}")


def read_models(actor: Actor) -> None:
    """Read all models as an evaluation does: what is open stays whole for a while."""
    with _attempt(actor, *UNFIT):
        for record in actor.topline.list_models(actor.store):
            model = actor.topline.load_model(f"{actor.url}/models/{record.id}")
            if actor.chance.random() < 0.3:
                Here.world.sleep(30.0)
            actor.hold(model.array("W").shape == (1, 2), "a model has other weights")


def discard(actor: Actor) -> None:
    """Delete a model by hand."""
    with _attempt(actor, *UNFIT):
        names = [record.id for record in actor.topline.list_models(actor.store)]
        actor.topline.delete(f"{actor.url}/models/{actor.chance.choice(names or ['m0001'])}")


def write_dataset(actor: Actor) -> None:
    """Write one of a few datasets, whose units some of the others have too."""
    with _attempt(actor):
        number = actor.chance.randint(0, 2)
        info = store_rows(actor, f"key {number}", [number, number + 1])
        actor.hold(len(info.counts) > 0, "a dataset counts no rows")
    read_rows(actor)


def write_otherwise(actor: Actor) -> None:
    """Write one of these datasets on a machine whose features differ in the last bits."""
    with _attempt(actor):
        number = actor.chance.randint(0, 2)
        store_rows(actor, f"key {number}", [number, number + 1], 2.0**-20)


def store_rows(actor: Actor, key: str, rows: list[int], off: float = 0.0) -> Any:
    """Store a dataset of one unit a row, whose features are `off` by so much."""
    plan = actor.topline.ChunkPlan(len(rows), 1, 1)
    writer = actor.topline.begin(actor.store, key, 1, "float32", plan, {"backbone": "test"})
    for unit in sorted(set(range(len(rows))) - writer.done_units()):
        row = rows[unit]
        part = pa.table({"sample_id": [f"image-{row}"], "sha256": [f"{row:064x}"]})
        writer.write_unit(unit, np.full((1, 1), row + off, np.float32), part)
    return writer.commit(np.arange(len(rows)) % 2, np.zeros(len(rows), np.int8), ["ant", "bee"])


def read_rows(actor: Actor) -> None:
    """Open a dataset, and read it for a while."""
    with _attempt(actor):
        infos = actor.topline.list_datasets(actor.store)
        if not infos:
            return
        try:
            dataset = actor.topline.Dataset(actor.store, actor.chance.choice(infos))
        except actor.topline.errors.NotFoundError:
            return
        with forgotten_meanwhile(actor, dataset):
            for number in range(dataset.info.n_rows):
                if actor.chance.random() < 0.3:
                    Here.world.sleep(30.0)
                value = dataset.rows(number, number + 1)
                actor.hold(value.shape == (1, 1), "a row has another shape")
            ids = dataset.sample_ids()
            rows = [f"image-{int(row)}" for row in np.asarray(dataset.rows(0, len(ids)))[:, 0]]
            actor.hold(ids == rows, f"rows of {ids} are those of {rows}")


@contextmanager
def forgotten_meanwhile(actor: Actor, dataset: Any) -> Iterator[None]:
    """Let a read fail whose dataset is gone at once as a row of it is forgotten; locks prevent even that.

    The last version holds no locks, and says what is missing.
    """
    try:
        yield
    except (IntegrityError, NotFoundError) as error:
        removed = read_catalog(actor.store).removed.get(dataset.info.id)
        if removed is not None and f"dataset {dataset.info.id} was removed" in str(error):
            # An edit looks whether its version is still there, and is refused by name.
            return
        if actor.store.locks or removed is None or not actor.ledger.erasing:
            raise Violation(f"{actor.name} reads {dataset.info.id}, and {error}") from error


def let_go(actor: Actor) -> None:
    """Prune by a rule that keeps little."""
    Here.world.process.lists_all = True
    with _attempt(actor, "FormatError"):
        prune(
            actor.store, RetentionPolicy(keep=actor.chance.choice([1, 1, 2]), days=0.0), SimulatedTime.now()
        )


def edit(actor: Actor) -> None:
    """Store the newest dataset without one of its rows."""
    with _attempt(actor, "NotFoundError"):
        dataset = Dataset.open(actor.store)
        with forgotten_meanwhile(actor, dataset):
            try:
                edited_dataset(dataset, Edits(frozenset(dataset.sample_ids()[-1:]), {}))
            except IncompleteError as error:
                # Another one stored the same, and that is removed by now: then it is to be run again.
                removals = read_catalog(actor.store).removed.values()
                if not any(removal.folder in str(error) for removal in removals):
                    raise


def forget_row(actor: Actor) -> None:
    """Forget an image that nobody imports again: from then on nothing in the store names it."""
    Here.world.process.lists_all = True
    name, actor.ledger.erasing = f"image-{SECRET}", True
    # Where nobody's reading is known, what another one removes at once is missing for this one.
    with _attempt(actor, "NotFoundError"):
        try:
            done = forget(actor.url, [name], "a test")
        except IntegrityError:
            if actor.store.locks:
                raise
            return
        if done.clean:
            actor.ledger.forgotten.add(name)


def retrain(actor: Actor) -> None:
    """Do what a retraining does to a store, in its order and under its lease, with a model of no data."""
    with _attempt(actor, *UNFIT):
        store, topline = actor.store, actor.topline
        with topline.held_lease(store, "retrain", actor.name, wait=actor.chance.choice([0.0, 90.0])) as lease:
            _entered(actor, "retrain", lease.number)
            try:
                run = topline.create_run(store, {"by": actor.name})
                with topline.run_lock(store, run) as held:
                    held.check()
                    meta = {"fingerprint": {}}
                    topline.save_checkpoint(store, run, 1, {"W": np.ones((1, 2))}, None, meta, held)
                    found = topline.latest_checkpoint(store, run)
                    seen = found is not None and found.round == 1
                    actor.hold(seen or Here.world.process.listed_late, "the checkpoint of this run is gone")
                lease.check()
                url = topline.save_model(store, model_record(actor, run), {"W": np.ones((1, 2))})
                lease.check()
                topline.promote(url, reason="a test", force=True)
            finally:
                _left(actor, "retrain")


def model_record(actor: Actor, run: str | None = None) -> Any:
    """Return the record of a model of the newest dataset."""
    info = actor.topline.find_dataset(actor.store)
    certificate = {"certified": True, "valid": True, "relative_gap": 1e-4}
    return actor.topline.ModelRecord(
        dataset=info.id,
        dataset_digest=info.digest,
        config={"by": actor.name},
        loss={"name": "softmax"},
        lam=0.1,
        C=1.0,
        smoothing=0.0,
        method="newton",
        n=2,
        d=1,
        m=2,
        class_names=("ant", "bee"),
        features={"backbone": "test"},
        certificate=certificate,
        run=run,
    )


#: Casts that share a part of a store, and what is there when they begin.
THEMES: dict[str, tuple[Act, ...]] = {
    "log": (append,),
    "lease": (hold_lease,),
    "checkpoint": (train,),
    "decision": (publish, decide, decide, look, let_go),
    "data": (write_dataset, write_dataset, read_rows, let_go, let_go),
    "forget": (edit, edit, forget_row, forget_row, read_rows, let_go),
    "retrain": (retrain, retrain, decide, let_go, look),
    "progress": (train, train, follow),
    "models": (read_models, read_models, discard, let_go, publish),
    "last bits": (write_dataset, write_otherwise, write_otherwise, let_go),
}

#: What the last version has as well.
SHARED = frozenset(
    act.__name__
    for act in (append, hold_lease, train, publish, decide, look, write_dataset, read_rows, retrain)
)

#: A row of the first dataset alone.
SECRET = 7
LAPSE = timedelta(days=2)
