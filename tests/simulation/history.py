"""Histories: a seed becomes a plan, a plan is lived through, and one that fails is made shorter."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from tests.simulation.actors import LAPSE, SECRET, SHARED, THEMES, Act, Actor, Ledger, publish, store_rows
from tests.simulation.bucket import Bucket
from tests.simulation.disk import Disk
from tests.simulation.machine import BUCKET, DISK, Random, SimulatedTime
from tests.simulation.versions import LAST, TODAY
from tests.simulation.world import Here, Process, Thread, Violation, World
from topline.storage.datasets import Dataset, list_datasets
from topline.storage.models import load_model, read_standing
from topline.storage.retention import RetentionPolicy, prune
from topline.storage.runs import latest_checkpoint
from topline.storage.stores import CommitLog, Store, open_store
from topline.storage.verification import verify_store

_MOST_SWITCHES = 600
#: In one history of so many two versions meet, on what the last one knew how to lease.
_MIXED, _OF_BOTH = 8, frozenset({"disk", "bucket"})
#: What the last version does not survive, so that its processes do not meet it; nor does one machine's disk.
_POWER = frozenset({"power cut"})
_SPARED = _POWER | {"listed late", "lost answer", "repeated", "late", "not synced", "not removed"}
#: Its trainings do not look whether others took over before they save, so that none is stopped for long.
_STOPPED = frozenset({"stopped"})


@dataclass(frozen=True)
class Mix:
    """How often a theme, a medium and so many acts and actors come, and where faults and turns may lie."""

    themes: Mapping[str, int]
    media: tuple[str, ...]
    acts: tuple[int, int]
    actors: tuple[int, int]
    faults: tuple[int, ...]
    far: tuple[int, ...]
    turns: tuple[float, ...]


_MEDIA = ("disk", "disk", "disk without locks", "bucket", "bucket")
#: What is dear is lived less often in the wide mix; the close one has more actors at once, and fewer errors.
MIXES = {
    "wide": Mix(
        themes={"log": 4, "lease": 4, "checkpoint": 4, "decision": 3, "data": 3, "forget": 1, "retrain": 1},
        media=_MEDIA,
        acts=(1, 3),
        actors=(1, 3),
        faults=(0, 0, 1, 1, 2, 4),
        far=(20, 60, 200),
        turns=(0.01, 0.05, 0.2),
    ),
    "close": Mix(
        themes={"progress": 3, "models": 3, "data": 6, "last bits": 2},
        media=_MEDIA[1:],
        acts=(2, 3),
        actors=(2, 3),
        faults=(0, 1, 1),
        far=(60, 200),
        turns=(0.05, 0.2, 0.5),
    ),
}


@dataclass(frozen=True)
class Part:
    """An actor of a plan: what it does, its chance, and the calls of it that meet a fault."""

    act: str
    seed: int
    faults: tuple[tuple[int, float], ...] = ()
    #: Whether it runs the last version of the program.
    last: bool = False


Cast = tuple[Part, ...]


@dataclass(frozen=True)
class Plan:
    """A history: on what, who acts in each act, and at which calls somebody else has a turn."""

    seed: int
    medium: str
    theme: str
    acts: tuple[Cast, ...]
    switches: tuple[tuple[int, float], ...]
    mix: str = "wide"

    @classmethod
    def of(cls, seed: int, mix: str = "wide") -> Plan:
        """Return the plan of a seed."""
        chance, of = random.Random(seed), MIXES[mix]
        theme = chance.choice([theme for theme, share in of.themes.items() for _ in range(share)])
        often = chance.choice(of.turns)
        calm = chance.random() < 0.2
        acts = tuple(
            tuple(_part(theme, of, chance, calm=calm) for _ in range(chance.randint(*of.actors)))
            for _ in range(chance.randint(*of.acts))
        )
        switches = [(step, chance.random()) for step in range(1, _MOST_SWITCHES) if chance.random() < often]
        medium = chance.choice(of.media)
        if seed % _MIXED == 0 and medium in _OF_BOTH:
            acts = tuple(tuple(_of_a_version(part, random.Random(part.seed)) for part in act) for act in acts)
        return cls(seed, medium, theme, acts, tuple(switches), mix)

    @property
    def mixed(self) -> bool:
        """Whether two versions of the program meet."""
        return self.seed % _MIXED == 0 and self.medium in _OF_BOTH

    @property
    def size(self) -> int:
        """The actors, faults and turns of it."""
        parts = [part for act in self.acts for part in act]
        return len(parts) + sum(len(part.faults) for part in parts) + len(self.switches)


def _part(theme: str, of: Mix, chance: random.Random, *, calm: bool) -> Part:
    act = chance.choice(THEMES[theme])
    count = 0 if calm else chance.choice(of.faults)
    far = chance.choice(of.far)
    faults = sorted({chance.randint(1, far): chance.random() for _ in range(count)}.items())
    return Part(act.__name__, chance.getrandbits(32), tuple(faults))


def _of_a_version(part: Part, chance: random.Random) -> Part:
    return replace(part, last=part.act in SHARED and chance.random() < 0.5)


_ACTS: dict[str, Act] = {act.__name__: act for cast in THEMES.values() for act in cast}


@dataclass
class Lived:
    """What came of a plan."""

    plan: Plan
    violation: str | None
    faults: Counter[str]
    checked: int
    steps: int
    trace: list[tuple[str, str, str]] = field(repr=False)


def live(plan: Plan) -> Lived:
    """Live through a plan; the same plan comes to the same end."""
    world = World(plan.switches)
    world.mixed = plan.mixed
    Here.world = world
    url = BUCKET if plan.medium == "bucket" else DISK
    begun = _begun(plan.theme, plan.medium, plan.mixed)
    world.now = 0.0
    world.bucket, world.disk = (one.copy() for one in begun)
    world.disk.chance = Random.chance = random.Random(plan.seed)
    # Without locks a day's grace protects readers and writers: clocks that differ by less do no harm.
    world.skew = 2e7 if plan.medium == "disk" else 4e4
    ledger = Ledger()
    number = 1
    try:
        for act in plan.acts:
            threads = []
            for part in act:
                process = Process(f"{part.act}-{number}", dict(part.faults), number=number)
                process.spared = _spared(plan, part)
                actor = Actor(url, random.Random(part.seed), ledger, LAST if part.last else TODAY)
                world.processes.append(process)
                threads.append(Thread(process, _bound(part.act, actor), main=True))
                number += 1
            world.act(threads)
            if world.violation is not None:
                break
            world.now += LAPSE.total_seconds()
            _inspect(open_store(url), ledger, last=act is plan.acts[-1])
    except Violation as violation:
        world.violation = str(violation)
    except Exception as error:
        world.violation = f"the inspector met {type(error).__name__}: {error}"
    return Lived(plan, world.violation, world.faults, ledger.checked, world.steps, world.trace)


def _spared(plan: Plan, part: Part) -> frozenset[str]:
    """Return the faults that a process does not meet."""
    if not plan.mixed:
        return frozenset()
    trains = plan.theme in ("checkpoint", "progress")
    return (_SPARED if part.last else _POWER) | (_STOPPED if trains else frozenset())


def _bound(act: str, actor: Actor) -> Callable[[], None]:
    return lambda: _ACTS[act](actor)


@functools.cache
def _begun(theme: str, medium: str, mixed: bool) -> tuple[Bucket, Disk]:
    """Return a bucket and a disk of which one has a store with what its actors begin with."""
    world, Random.chance = Here.world, random.Random(0)
    world.bucket, world.disk = Bucket(), Disk(locks=medium == "disk")
    url, version = BUCKET if medium == "bucket" else DISK, LAST if mixed else TODAY
    actor = Actor(url, random.Random(0), Ledger(), version)
    if theme in ("checkpoint", "progress"):
        actor.topline.create_run(actor.store, {})
    elif theme in ("decision", "retrain", "models"):
        store_rows(actor, "key 0", [0, 1])
        for _ in range(3):
            publish(actor)
    elif theme in ("data", "last bits"):
        store_rows(actor, "key 0", [0, 1])
    elif theme == "forget":
        store_rows(actor, "key 3", [SECRET, 0, 1])
    return world.bucket, world.disk


def _inspect(store: Store, ledger: Ledger, *, last: bool) -> None:
    """Look at a store in which nobody is at work: what was promised is there, and nothing else is wrong."""
    log = CommitLog(store, "race")
    found = {record["seq"]: record["name"] for record in log.records()}
    lost = {seq: name for seq, name in ledger.records.items() if found.get(seq) != name}
    _hold(ledger, not lost, f"records {lost} were acknowledged, and the log has {found}")
    _hold(ledger, len(set(found.values())) == len(found), f"a record is there twice: {found}")
    _hold(ledger, not [one for one in log.findings("log") if not one.harmless], "the log is damaged")
    standing = read_standing(store)
    pruned = [one for one in standing.entries if one.action == "delete" and one.by == "topline prune"]
    champions = [one.model for one in pruned if one.model == one.champion_before]
    _hold(ledger, not champions, f"{champions} went by the rule, each as champion")
    champion = standing.champion
    if champion is not None:
        shape = load_model(f"{store.url}/models/{champion}").array("W").shape
        _hold(ledger, shape == (1, 2), f"the champion {champion} has other weights")
    if ledger.saved:
        checkpoint = latest_checkpoint(store, "r0001")
        there = 0 if checkpoint is None else checkpoint.round
        _hold(ledger, there >= ledger.saved, f"checkpoint {ledger.saved} was saved, and {there} is there")
    if ledger.forgotten:
        # A request that was repeated late may have put something again that nothing refers to.
        prune(store, RetentionPolicy(keep=100, days=1.0), SimulatedTime.now())
    for name in ledger.forgotten:
        left = [path for path in store.walk() if name.encode() in store.read_bytes(path)]
        _hold(ledger, not left, f"{name} was forgotten, and is in {left}")
    if last:
        for info in list_datasets(store):
            rows = Dataset(store, info).rows(0, info.n_rows)
            _hold(ledger, rows.shape == (info.n_rows, 1), f"dataset {info.id} has other rows")
        wrong = [str(one) for one in verify_store(store, deep=False) if not one.harmless]
        _hold(ledger, not wrong, f"fsck finds {wrong}")


def _hold(ledger: Ledger, condition: object, what: str) -> None:
    ledger.checked += 1
    if not condition:
        raise Violation(what)


def shortest(failed: Lived, tries: int = 400) -> Lived:
    """Return the shortest history that was found to fail like one that did."""
    best = failed
    again = True
    while again and tries > 0:
        again = False
        for plan in _shorter(best.plan):
            tries -= 1
            lived = live(plan)
            if lived.violation is not None:
                best, again = lived, True
                break
            if tries <= 0:
                break
    return best


def _shorter(plan: Plan) -> Iterator[Plan]:
    """Yield plans with an act, an actor, a fault or some turns less."""
    for place in range(len(plan.acts)):
        rest = plan.acts[:place] + plan.acts[place + 1 :]
        if rest:
            yield replace(plan, acts=rest)
    for place, act in enumerate(plan.acts):
        for which in range(len(act)):
            if len(act) > 1:
                yield replace(plan, acts=_with(plan.acts, place, act[:which] + act[which + 1 :]))
    for size in (len(plan.switches), len(plan.switches) // 2, len(plan.switches) // 4, 1):
        for start in range(0, len(plan.switches), max(size, 1)):
            yield replace(plan, switches=plan.switches[:start] + plan.switches[start + size :])
    for place, act in enumerate(plan.acts):
        for which, part in enumerate(act):
            for fault in range(len(part.faults)):
                less = replace(part, faults=part.faults[:fault] + part.faults[fault + 1 :])
                yield replace(plan, acts=_with(plan.acts, place, (*act[:which], less, *act[which + 1 :])))


def _with(acts: tuple[Cast, ...], place: int, act: Cast) -> tuple[Cast, ...]:
    return (*acts[:place], act, *acts[place + 1 :])


def told(lived: Lived) -> str:
    """Return a history in words: who changed what, turn by turn, and what was violated."""
    lines: list[str] = []
    before = ("", "")
    for who, call, path in lived.trace:
        looks = call in _LOOKS and "<-" not in path
        if not looks and (who, call, call) != (*before, "sleep"):
            lines.append(f"  {who if who != before[0] else '':<18} {call:<14} {path}")
        if not looks:
            before = who, call
    plan = lived.plan
    head = f"seed {plan.seed} ({plan.mix}), theme {plan.theme} on a {plan.medium}: {lived.violation}"
    return "\n".join([head, *lines])


_LOOKS = frozenset({"stat", "read", "open", "write", "head", "get", "list"})
