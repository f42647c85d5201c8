"""Decisions on models: an append-only log that determines stages and the champions' history.

Each decision is a sealed record under the next number of the log commits/registry, put only if that number is
free: of two concurrent decisions on the same standing one wins, and the other learns which.  Nothing is ever
rewritten.  A damaged or contradictory log is refused, naming the entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from topline.storage.errors import ConflictError, FormatError, IntegrityError, StorageError
from topline.storage.findings import RESTORE, Finding
from topline.storage.models.records import deleted_models, published_models
from topline.storage.records import from_fields, now, plain
from topline.storage.schema import DECISION_ENCODING, check_encoding, encoding
from topline.storage.stores import CommitLog, Store
from topline.storage.stores.urls import join

ACTIONS = ("promote", "keep", "rollback", "archive", "delete", "pin", "unpin")


_DONE = {
    "promote": "promoted",
    "keep": "kept out",
    "rollback": "brought back",
    "archive": "archived",
    "delete": "deleted",
    "pin": "pinned",
    "unpin": "unpinned",
}


@dataclass(frozen=True)
class DecisionRecord:
    """One decision: what happened to `model`, who was champion before, why and on what evidence.

    `action` "keep" means that the champion stays after comparison with a challenger.  `by` is a run's id or
    another origin of the decision; `evidence` is plain JSON (metrics, certificate, drift).  `forced`: a guard
    was overridden.  `kinds` name the conditions of the rule that decided, and `repeated` counts how often in
    a row they kept a champion.
    """

    action: str
    model: str
    reason: str
    by: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    forced: bool = False
    champion_before: str | None = None
    when: str = ""
    seq: int = 0
    kinds: tuple[str, ...] = ()
    repeated: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the entry as a JSON object."""
        return {**plain(asdict(self)), **encoding(DECISION_ENCODING)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any], place: str) -> DecisionRecord:
        """Return the entry from its JSON object; `FormatError` naming `place` if it is not one."""
        check_encoding(record, DECISION_ENCODING, place)
        return from_fields(cls, record, place)

    def __str__(self) -> str:
        return f"{self.model} was {_DONE[self.action]} by {self.by} at {self.when} ({self.reason})"


@dataclass(frozen=True)
class Reign:
    """A period as champion: from decision `seq` until the next change, None while it lasts."""

    model: str
    seq: int
    since: str
    by: str
    reason: str
    until: str | None = None


@dataclass(frozen=True)
class Standing:
    """The state that the decisions so far lead to.

    `former` are the champions that rollbacks would restore, the next one last; `pinned` models stay until
    they are unpinned.
    """

    entries: tuple[DecisionRecord, ...] = ()
    champion: str | None = None
    former: tuple[str, ...] = ()
    archived: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()
    pinned: frozenset[str] = frozenset()

    @property
    def seq(self) -> int:
        """Number of the last decision, 0 before the first."""
        return len(self.entries)

    @property
    def previous(self) -> str | None:
        """The champion that a rollback would restore."""
        return self.former[-1] if self.former else None

    def stage(self, model: str) -> str:
        """Return the stage of a model: candidate, champion, archived or deleted."""
        if model == self.champion:
            return "champion"
        if model in self.deleted:
            return "deleted"
        return "archived" if model in self.archived else "candidate"

    def of(self, model: str) -> tuple[DecisionRecord, ...]:
        """Return the decisions on one model, oldest first."""
        return tuple(entry for entry in self.entries if entry.model == model)

    @cached_property
    def reigns(self) -> tuple[Reign, ...]:
        """Return the periods of all champions, oldest first."""
        found: list[Reign] = []
        standing = Standing()
        for entry in self.entries:
            before, standing = standing.champion, standing.after(entry)
            if standing.champion == before:
                continue
            if before is not None:
                found[-1] = replace(found[-1], until=entry.when)
            if standing.champion is not None:
                found.append(Reign(standing.champion, entry.seq, entry.when, entry.by, entry.reason))
        return tuple(found)

    def after(self, entry: DecisionRecord) -> Standing:
        """Return the standing after `entry`; `FormatError` if it is not allowed."""
        refusal = self._refusal(entry)
        if refusal is not None:
            raise FormatError(refusal)
        entries, model = (*self.entries, entry), entry.model
        if entry.action == "promote":
            former = (*self.former, self.champion) if self.champion is not None else self.former
            return self._crowned(entries, model, former)
        if entry.action == "rollback":
            return self._crowned(entries, model, self.former[:-1])
        if entry.action == "archive":
            return replace(self, entries=entries, archived=self.archived | {model})
        if entry.action == "delete":
            champion = None if model == self.champion else self.champion
            former = _without_repeats([name for name in self.former if name != model], champion)
            gone = self.deleted | {model}
            pinned = self.pinned - {model}
            return replace(
                self, entries=entries, champion=champion, former=former, deleted=gone, pinned=pinned
            )
        if entry.action in ("pin", "unpin"):
            pinned = self.pinned | {model} if entry.action == "pin" else self.pinned - {model}
            return replace(self, entries=entries, pinned=pinned)
        return replace(self, entries=entries)

    def _crowned(self, entries: tuple[DecisionRecord, ...], model: str, former: tuple[str, ...]) -> Standing:
        stepped_down = self.archived if self.champion is None else self.archived | {self.champion}
        return replace(self, entries=entries, champion=model, former=former, archived=stepped_down - {model})

    def _refusal(self, entry: DecisionRecord) -> str | None:
        """Return why an entry is not allowed here, None if it is."""
        action, model = entry.action, entry.model
        if action not in ACTIONS:
            return f"a decision is one of {', '.join(ACTIONS)}, not {action!r}"
        if entry.champion_before != self.champion:
            return f"{action} of {model} was decided under {entry.champion_before}, not {self.champion}"
        if model in self.deleted:
            return f"model {model} was deleted; there is nothing left to {action}"
        if action in ("promote", "archive", "keep") and model == self.champion:
            return f"{model} is the champion, so there is nothing to {action}"
        if action in ("pin", "unpin") and (model in self.pinned) == (action == "pin"):
            return f"model {model} is {'pinned already' if action == 'pin' else 'not pinned'}"
        if action == "rollback" and model != self.previous:
            return f"the champion before was {self.previous}, not {model}"
        return None


def _without_repeats(names: Sequence[str], champion: str | None) -> tuple[str, ...]:
    """Drop entries for which a rollback would change nothing."""
    following = [*names[1:], champion]
    return tuple(name for name, after in zip(names, following, strict=True) if name != after) if names else ()


def read_standing(store: Store) -> Standing:
    """Return the standing of a store's models; `IntegrityError` for a damaged or contradictory log."""
    log = _log(store)
    standing = Standing()
    for record in log.records():
        place = join(store.url, log.folder, f"{record['seq']:08d}.json")
        entry = DecisionRecord.from_json(record, place)
        try:
            standing = standing.after(entry)
        except FormatError as error:
            raise IntegrityError(f"{place} contradicts the decisions before it: {error}") from error
    return standing


def record_decision(store: Store, standing: Standing, entry: DecisionRecord) -> Standing:
    """Record a decision based on `standing`, and return the new standing.

    Fills in `champion_before`, `when` and `seq`.  Raises `FormatError` for a decision that is not allowed,
    and `ConflictError` naming a concurrent one that came first.
    """
    entry = replace(
        entry,
        evidence=plain(entry.evidence),
        champion_before=standing.champion,
        when=now(),
        seq=standing.seq + 1,
    )
    after = standing.after(entry)
    log = _log(store)
    if log.append_as(entry.seq, entry.to_json()):
        return after
    winner = DecisionRecord.from_json(log.record(entry.seq), log.folder)
    raise ConflictError(
        f"{entry.model} was not {_DONE[entry.action]}: meanwhile {winner}; look again, and decide again"
    )


def decision_findings(store: Store) -> Iterator[Finding]:
    """Yield defects of the log of decisions, and contradictions between it and the stored models."""
    log = _log(store)
    found = list(log.findings("registry"))
    yield from found
    try:
        standing = read_standing(store)
    except StorageError as error:
        if all(finding.harmless for finding in found):
            yield Finding("registry", log.folder, str(error), RESTORE)
        return
    published = published_models(store)
    for name in (standing.champion, standing.previous):
        if name is not None and name not in published:
            role = "champion" if name == standing.champion else "model to roll back to"
            what = f"it is the {role}, and is gone"
            yield Finding(
                "registry", join("models", name), what, "restore it from a copy, or promote another"
            )
    for name in sorted(standing.deleted.intersection(published)):
        what = "it was to be deleted, and is there"
        yield Finding("staging", join("models", name), what, f"topline models delete {name}", harmless=True)
    stones = deleted_models(store)
    for name in sorted(standing.deleted.difference(published, stones)):
        path = join("models", name, "deleted.json")
        yield Finding("registry", path, "it is missing, and the decision to delete is there", RESTORE)
    for name in stones:
        if name not in standing.deleted:
            yield Finding("registry", log.folder, f"the decision to delete {name} is missing", RESTORE)


def _log(store: Store) -> CommitLog:
    return CommitLog(store, "registry")
