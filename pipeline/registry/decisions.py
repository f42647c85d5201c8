"""Decisions of the model registry: promote, keep, roll back, archive and delete, each with its guards.

A decision is an entry in the store's log (`topline.storage.models`), based on the standing against
which its guards were checked: of two simultaneous decisions one raises `ConflictError`.
"""

from __future__ import annotations

import getpass
import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from topline.pipeline.errors import GuardError, InputError
from topline.pipeline.evaluation import row_metric
from topline.pipeline.progress import Progress
from topline.pipeline.registry.promotion import (
    Decision,
    Evidence,
    PromotionRule,
    decide,
    feature_misfit,
    measure,
)
from topline.pipeline.rows import StoredModel
from topline.storage.errors import StorageError
from topline.storage.models import (
    DecisionRecord,
    ModelRecord,
    Standing,
    delete_model,
    list_models,
    load_model,
    read_standing,
    record_decision,
    remove_model,
)
from topline.storage.stores import Store, check_files, open_store, split_url
from topline.storage.stores.urls import join

logger = logging.getLogger(__name__)

COMMAND_LINE = "command line"
# A champion kept this many times in a row for the same reason raises an alert.
LOUD = 3
#: Counts of images recorded with a decision, from the fields of `topline.pipeline.ingest.Changes`.
IMAGES = ("new", "changed", "gone", "rejected")
# Parts of a model's evaluation kept in an entry of the registry.
EVALUATION_KEPT = ("dataset", "split", "rows", "topk", "metrics")


@dataclass(frozen=True)
class Weighing:
    """The outcome of weighing a challenger against the champion's URL, and the standing afterwards."""

    model: str
    champion: str | None
    decision: Decision
    evidence: Evidence
    standing: Standing

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "model": self.model,
            "promoted": self.decision.promote,
            "repeated": self.decision.repeated,
            "reasons": list(self.decision.reasons),
            "metric": self.decision.metric,
            "champion_before": self.champion,
            "champion": self.standing.champion,
            "evidence": self.evidence.to_dict(),
        }


def registered(store_url: str) -> tuple[Standing, list[ModelRecord]]:
    """Return the standing of a store, and its models by number."""
    store = open_store(store_url)
    return read_standing(store), list_models(store)


def champion_url(store_url: str) -> str | None:
    """Return the URL of a store's champion, or None."""
    store = open_store(store_url)
    champion = read_standing(store).champion
    return None if champion is None else join(store.url, "models", champion)


def promote(
    model_url: str,
    *,
    reason: str = "",
    by: str = COMMAND_LINE,
    evidence: Evidence | None = None,
    force: bool = False,
    standing: Standing | None = None,
) -> Standing:
    """Make a model the champion, whatever its accuracy; `promote_by_rule` weighs it first.

    Raises `GuardError` for an uncertified or unfitting model, unless forced with a reason; a damaged file is
    always refused.  `standing` is the one under which the evidence was measured, by default the newest.
    """
    place = _Place.of(model_url)
    standing = read_standing(place.store) if standing is None else standing
    record = _verified_record(model_url)
    against, certificate = _misfits(place, standing), record.certificate
    if certificate is None:
        against.insert(0, "it has no certificate (topline certify gives it one)")
    elif not (certificate.get("certified") and certificate.get("valid")):
        gap = certificate.get("relative_gap")
        against.insert(
            0, f"its relative gap {gap} is not certified, for which topline certify gives the reason"
        )
    _refuse_guarded(against, f"{record.id} is not promoted", reason, force=force)
    said = reason or "promoted by hand"
    entry = DecisionRecord("promote", place.name, said, by, forced=bool(against))
    return _recorded_decision(place, standing, entry, evidence)


def promote_by_rule(
    model_url: str,
    rule: PromotionRule,
    *,
    by: str = COMMAND_LINE,
    split: str = "test",
    progress: Progress | None = None,
    images: Mapping[str, int] | None = None,
) -> Weighing:
    """Weigh a challenger by the rule, promote it or keep the champion, and record why.

    A champion, or a model that lost to this champion before, is not logged again.  Raises `ConflictError` if
    the standing changed meanwhile; calling again repeats the weighing.
    """
    weighed = weigh(model_url, rule, split=split, progress=progress)
    place, standing, decision = _Place.of(model_url), weighed.standing, weighed.decision
    if place.name == standing.champion:
        return weighed
    if decision.promote:
        _verified_record(model_url)
    last = standing.of(place.name)[-1:]
    again = [entry for entry in last if entry.action == "keep" and entry.champion_before == standing.champion]
    decision = _with_repetitions(decision, standing, again=bool(again))
    if decision.promote or not again:
        entry = DecisionRecord(
            "promote" if decision.promote else "keep",
            place.name,
            decision.text,
            by,
            {"metric": decision.metric, **({} if images is None else {"images": dict(images)})},
            kinds=decision.kinds,
            repeated=decision.repeated,
        )
        standing = _recorded_decision(place, standing, entry, weighed.evidence)
    return Weighing(model_url, weighed.champion, decision, weighed.evidence, standing)


def _with_repetitions(decision: Decision, standing: Standing, *, again: bool) -> Decision:
    """Return a decision; if it keeps the champion, with how often in a row for the same reason."""
    if decision.promote:
        return decision
    weighed = [entry for entry in standing.entries if entry.action in ("promote", "keep", "rollback")]
    last = weighed[-1] if weighed else None
    same = last is not None and last.action == "keep" and set(last.kinds) == set(decision.kinds)
    repeated = last.repeated + (not again) if same and last is not None else 1
    if repeated < LOUD:
        return replace(decision, repeated=repeated)
    said = (
        f"{standing.champion} is kept for the same reason ({', '.join(decision.kinds)}) {repeated} times in a"
        " row: look at the data, or change the rule"
    )
    logger.warning("%s", said)
    return replace(decision, repeated=repeated, reasons=(said, *decision.reasons))


def weigh(
    model_url: str, rule: PromotionRule, *, split: str = "test", progress: Progress | None = None
) -> Weighing:
    """Measure a challenger against the champion and decide by the rule, without changing anything."""
    place = _Place.of(model_url)
    standing = read_standing(place.store)
    challenger = load_model(model_url).record
    metric, evidence = row_metric(rule.metric_for(challenger)), Evidence()
    rival = None if standing.champion is None else place.url_of(standing.champion)
    if rival is None:
        decision = decide(challenger, None, evidence, rule)
    elif standing.champion == place.name:
        decision = Decision(False, ("it is the champion already",))
    elif misfits := _misfits(place, standing, by_rule=True):
        evidence = Evidence(unmeasured="; ".join(misfits))
        decision = Decision(False, tuple(misfits), ("misfit",))
    else:
        common = rule.on_class_changes == "compare-common"
        evidence = measure(
            model_url, rival, metrics=[metric], split=split, confidence=rule.confidence, common=common,
            progress=progress,
        )  # fmt: skip
        decision = decide(challenger, load_model(rival).record, evidence, rule)
    return Weighing(model_url, rival, decision, evidence, standing)


def rollback(store_url: str, *, reason: str = "", by: str = COMMAND_LINE) -> Standing:
    """Restore the previous champion; raise `InputError` if one of its files is damaged."""
    store = open_store(store_url)
    standing = read_standing(store)
    if standing.previous is None:
        now = standing.champion
        rest = f" before {now}: promote a model instead" if now else ": promote a model first"
        raise GuardError(f"{store_url} has had no champion{rest}")
    place = _Place(store, standing.previous)
    _verified_record(place.url_of(place.name))
    entry = DecisionRecord("rollback", place.name, reason or "rolled back by hand", by)
    return _recorded_decision(place, standing, entry)


def mark(model_url: str, action: Literal["archive", "pin", "unpin"], *, reason: str = "") -> Standing:
    """Archive, pin or unpin a model; raise `FormatError` if that does not apply to it."""
    place = _Place.of(model_url)
    load_model(model_url)
    said = {"archive": "archived", "pin": "pinned", "unpin": "unpinned"}[action]
    entry = DecisionRecord(action, place.name, reason or f"{said} by hand", COMMAND_LINE)
    return _recorded_decision(place, read_standing(place.store), entry)


def delete(
    model_url: str, *, reason: str = "", by: str = COMMAND_LINE, force: bool = False, at_once: bool = False
) -> Standing:
    """Delete a model; the champion, the one that a rollback would restore and pinned ones only if forced.

    The decision is recorded first, so that deleting again completes an interrupted deletion.  The model
    disappears at once; files that may be in use are left to pruning, unless `at_once`.
    """
    place = _Place.of(model_url)
    standing = read_standing(place.store, settled=True)
    if place.name not in standing.deleted:
        load_model(model_url)
        guards = {
            "it is the champion": place.name == standing.champion,
            "it is pinned": place.name in standing.pinned,
            f"a rollback of {standing.champion} would need it": place.name == standing.previous,
        }
        against = [guard for guard, holds in guards.items() if holds]
        _refuse_guarded(against, f"{place.name} is not deleted", reason, force=force)
        entry = DecisionRecord("delete", place.name, reason or "deleted by hand", by, forced=bool(against))
        standing = _recorded_decision(place, standing, entry)
    why = standing.of(place.name)[-1].reason
    if at_once:
        remove_model(place.store, place.name, why)
    else:
        delete_model(model_url, why)
    return standing


@dataclass(frozen=True)
class _Place:
    """A model's store and name."""

    store: Store
    name: str

    @classmethod
    def of(cls, model_url: str) -> _Place:
        root, name = split_url(model_url, "models")
        return cls(open_store(root), name)

    def url_of(self, name: str) -> str:
        return join(self.store.url, "models", name)


def _refuse_guarded(against: list[str], what: str, reason: str, *, force: bool) -> None:
    if against and not force:
        raise GuardError(f"{what}: {'; '.join(against)} (--force with a --reason overrides this)")
    if force and not reason:
        raise GuardError(f"{what}: --force needs a --reason, which the registry keeps")


def _recorded_decision(
    place: _Place, standing: Standing, entry: DecisionRecord, measured: Evidence | None = None
) -> Standing:
    """Record a decision with its author and what is known of its model."""
    evidence: dict[str, Any] = {}
    if entry.action not in ("delete", "pin", "unpin"):
        record = load_model(place.url_of(place.name)).record
        evaluation = record.evaluation or {}
        evidence = {
            "dataset": record.dataset,
            "dataset_digest": record.dataset_digest,
            "certificate": record.certificate,
            "evaluation": {name: evaluation.get(name) for name in EVALUATION_KEPT},
            "comparison": None if measured is None else measured.to_dict(),
            "drift": None if measured is None or measured.drift is None else measured.drift.to_dict(),
        }
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have no name.
        user = str(os.getuid())
    by = f"{entry.by} ({user}@{socket.gethostname()})"
    entry = replace(entry, model=place.name, by=by, evidence={**evidence, **entry.evidence})
    return record_decision(place.store, standing, entry)


def _verified_record(model_url: str) -> ModelRecord:
    """Return the record of a model; raise `InputError` unless every file is there with its digest."""
    model = load_model(model_url)
    for finding in check_files(model.files, deep=True, fix="restore it from a copy, or train again"):
        raise InputError(f"{model_url} is damaged: {finding}")
    return model.record


def _misfits(place: _Place, standing: Standing, *, by_rule: bool = False) -> list[str]:
    """Return how a model's data and classes do not fit the champion's; the rule checks classes itself."""
    if standing.champion in (None, place.name):
        return []
    challenger = StoredModel.open(place.url_of(place.name))
    try:
        champion = StoredModel.open(place.url_of(str(standing.champion)))
    except StorageError as error:
        return [f"the champion cannot be read ({error})"]
    found = [feature_misfit(champion, challenger)]
    known = set(challenger.model.record.class_names)
    lost = [name for name in champion.model.record.class_names if name not in known]
    if lost and not by_rule:
        shown = ", ".join(lost[:5]) + (" ..." if len(lost) > 5 else "")
        found.append(f"it does not know {len(lost)} classes of the champion ({shown})")
    return [text for text in found if text is not None]
