"""`topline models`: the models of a store, and decisions on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from topline.pipeline.cli.command import Call, ModelArgument, Outcome, StoreOption, find_model, measuring
from topline.pipeline.cli.table import SHORT_OF_TOLERANCE, SUCCESS, facts, following, table
from topline.pipeline.errors import ConfigError
from topline.pipeline.options import RUN_STORE, EvaluateConfig, PromotionRule
from topline.solvers.counts import how_many

if TYPE_CHECKING:
    from topline.pipeline.evaluation import Metric
    from topline.pipeline.registry import Evidence, Weighing
    from topline.storage.models import Standing

ReasonOption = Annotated[str, typer.Option("--reason", help="Why, for the registry's log")]
ForceOption = Annotated[bool, typer.Option("--force", help="Override the guards; needs a --reason")]
HEAD = ("model", "dataset", "loss", "C", "method", "certified")


def list_(_: Call, store: StoreOption = RUN_STORE) -> Outcome:
    """List the models of a store with their gaps, accuracies and stages, and who is champion since when."""
    from topline.pipeline.evaluation import METRICS
    from topline.pipeline.registry import registered, summary

    standing, records = registered(store)
    models = [{**summary(record), "stage": standing.stage(record.id)} for record in records]
    measured = {name for model in models for name in model["metrics"]}
    known = [metric for metric in METRICS.values() if metric.headline and metric.name in measured]
    lines = models_table(models, known) if models else [f"{store} holds no model yet"]
    reigns = [asdict(reign) for reign in standing.reigns]
    payload = {"store": store, "champion": standing.champion, "models": models, "champions": reigns}
    after = following(("train", "--store", store))
    if models:
        after = _next_of_model(f"{store}/models/{models[-1]['id']}", standing.champion, store)
    return Outcome(payload, [*lines, *_champion_lines(standing), *after])


def models_table(models: Sequence[Mapping[str, Any]], metrics: Sequence[Metric]) -> list[str]:
    """Return the lines of summaries of models, with "no" before the gap of an uncertified one."""
    head = (*HEAD, *(metric.column for metric in metrics), "stage")
    return table(head, [_row(model, metrics) for model in models], spare=("method", "dataset"))


def _next_of_champion(store: str) -> list[str]:
    from topline.storage.models import load_model

    champion = f"{store}/models/champion"
    described = load_model(find_model(champion)).record.features.get("kind") == "images"
    what = ("--images", "FOLDER") if described else ("--features", "FILE")
    return following(("predict", champion, *what, "--output", "predictions.csv"))


def show(
    _: Call,
    model: ModelArgument,
    log: Annotated[bool, typer.Option("--log", help="What its run logged, and what happened to it")] = False,
) -> Outcome:
    """Show everything recorded about a model: lineage, problem, certificate, accuracies, decisions."""
    from topline.pipeline.pages import flat
    from topline.storage.models import load_model, read_standing

    opened = load_model(find_model(model))
    if log:
        from topline.pipeline.report import logged_lines

        said = logged_lines(opened.store, opened.record.run)
        return Outcome({"model": model, "run": opened.record.run, "log": said}, said)
    standing, record = read_standing(opened.store), opened.record.to_json()
    decisions = [asdict(entry) for entry in standing.of(opened.record.id)]
    known = {"version": opened.record.version, "stage": standing.stage(opened.record.id)}
    evaluation = record.get("evaluation") or {}
    lists = ("per_class", "confused", "per_label", "confusion", "sizes")
    brief = {key: value for key, value in evaluation.items() if key not in lists}
    shown = {**known, **record, "evaluation": brief, "class_names": record["class_names"][:10]}
    width = max(len(name) for name, _ in flat(shown))
    lines = [f"{name:<{width}}  {value}" for name, value in flat(shown)]
    lines += [f"{'decision':<{width}}  {entry}" for entry in standing.of(opened.record.id)]
    if evaluation:
        after = _next_of_model(opened.url, standing.champion, opened.url)
    else:
        after = following(*measuring(opened.url))
    return Outcome({"model": model, **record, **known, "decisions": decisions}, [*lines, *after])


def _next_of_model(url: str, champion: str | None, compared: str) -> list[str]:
    """Return what comes after a model was looked at, `compared` with a champion that is another."""
    store, _, name = url.rpartition("/models/")
    if champion is None:
        return following(("models", "promote", url, "--reason", "WHY"))
    return _next_of_champion(store) if name == champion else following(("models", "compare", compared))


def _champion_lines(standing: Standing) -> list[str]:
    if not standing.reigns:
        return []
    last = standing.reigns[-1]
    if last.until is not None:
        return ["", f"no champion since {last.until}"]
    reasons = (f"  {reason}" for reason in last.reason.split("; "))
    return ["", f"champion {last.model} since {last.since}, by {last.by}:", *reasons]


def _row(model: Mapping[str, Any], metrics: Sequence[Metric]) -> tuple[str, ...]:
    gap, measured, loss = model["relative_gap"], model["metrics"], model["loss"]
    if gap is None:
        certified = {None: "-", True: "yes", False: "no"}[model["certified"]]
    else:
        certified = {None: "- ", True: "", False: "no "}[model["certified"]] + f"{gap:.2e}"
    named = loss.get("name", "?") + (f" k={loss['k']}" if loss.get("k") else "")
    values = (metric.text(measured[metric.name]) if metric.name in measured else "-" for metric in metrics)
    return (
        model["id"], model["dataset"].partition("-")[0], named, f"{model['C']:g}", model["method"],
        certified, *values, model["stage"],
    )  # fmt: skip


def compare(
    call: Call,
    model: ModelArgument,
    other: Annotated[
        str | None, typer.Argument(metavar="OTHER", help="Model to compare with (default: the champion)")
    ] = None,
) -> Outcome:
    """Compare two models on the same held-out rows: metrics with intervals, drift, what differs."""
    from topline.pipeline.registry import compare as side_by_side

    first = find_model(model)
    second = find_model(other or f"{first.rpartition('/')[0]}/champion")
    split = call.config(EvaluateConfig).split
    found = side_by_side(first, second, split=split, progress=call.progress)
    payload = found.to_dict()
    ids = (found.first.id, found.second.id)
    names = ("stage", "dataset", "certified", "relative_gap", "passes", "seconds")
    rows = [(name, *(_text(one[name]) for one in payload["models"])) for name in names]
    rows += [(name, *map(_text, values)) for name, values in found.differences.items() if name not in names]
    lines = [*_measured(found.evidence, ids), "", *table(("", *ids), rows)]
    after = following(("models", "promote", first, "--by-rule"))
    if found.stages[0] == "champion":
        after = _next_of_champion(first.rpartition("/models/")[0])
    return Outcome(payload, [*lines, *after])


def promote(
    call: Call,
    model: ModelArgument,
    by_rule: Annotated[
        bool, typer.Option("--by-rule", help="Only if the rule says so; any option of the rule implies it")
    ] = False,
    reason: ReasonOption = "",
    force: ForceOption = False,
) -> Outcome:
    """Make a model the champion: by hand, or only if the promotion rule says so."""
    from topline.pipeline.registry import promote as crown
    from topline.pipeline.registry import promote_by_rule

    url = find_model(model)
    by_rule = by_rule or call.chose("promote", *PromotionRule.model_fields)
    if not by_rule:
        standing = crown(url, reason=reason, force=force)
        return _decided(standing, _next_of_champion(url.rpartition("/models/")[0]))
    if force or reason:
        raise ConfigError("--force and --reason are for promotion by hand: leave out the rule, or them")
    split = call.config(EvaluateConfig).split
    found: Weighing = promote_by_rule(url, call.config(PromotionRule), split=split, progress=call.progress)
    promoted = found.decision.promote
    verdict = "promoted" if promoted else "kept out"
    ids = (url.rpartition("/")[2], (found.champion or "").rpartition("/")[2])
    lines = [*_measured(found.evidence, ids), "", f"{ids[0]} is {verdict}:"]
    lines += [f"  {reason}" for reason in found.decision.reasons]
    store = url.rpartition("/models/")[0]
    lines += _next_of_champion(store) if promoted else following(("models", "compare", url))
    return Outcome(found.to_dict(), lines, code=SUCCESS if promoted else SHORT_OF_TOLERANCE)


def rollback(_: Call, store: StoreOption = RUN_STORE, reason: ReasonOption = "") -> Outcome:
    """Make the previous champion the champion again."""
    from topline.pipeline.registry import rollback as back

    return _decided(back(store, reason=reason), _next_of_champion(store))


def archive(_: Call, model: ModelArgument, reason: ReasonOption = "") -> Outcome:
    """Archive a model; it can still be promoted."""
    url = find_model(model)
    return _marked(url, "archive", reason, ("list", "--store", url.rpartition("/models/")[0]))


def pin(_: Call, model: ModelArgument, reason: ReasonOption = "") -> Outcome:
    """Keep a model, its run and its dataset, however old they get: topline prune does not remove them."""
    return _marked(find_model(model), "pin", reason)


def unpin(_: Call, model: ModelArgument, reason: ReasonOption = "") -> Outcome:
    """Allow topline prune to remove a model again when its rule says so."""
    return _marked(find_model(model), "unpin", reason)


def _marked(
    url: str, action: Literal["archive", "pin", "unpin"], reason: str, after: Sequence[str] = ()
) -> Outcome:
    """Write a decision on a model into the registry's log."""
    from topline.pipeline.registry import mark

    listed = following(("models", *after)) if after else _next_of_room(url)
    return _decided(mark(url, action, reason=reason), listed)


def delete(_: Call, model: ModelArgument, reason: ReasonOption = "", force: ForceOption = False) -> Outcome:
    """Delete a model permanently, unless it is the champion or a rollback would need it."""
    from topline.pipeline.registry import delete as remove

    if not model.rstrip("/").rpartition("/")[0].endswith("models"):
        raise ConfigError(
            f"{model} is not the URL of a model: write STORE/models/m0001, so that none is named by accident"
        )
    url = find_model(model)
    return _decided(remove(url, reason=reason, force=force), _next_of_room(url))


def _next_of_room(url: str) -> list[str]:
    """Return what comes after a model was kept or let go: what pruning its store would remove."""
    return following(("prune", url.rpartition("/models/")[0], "--dry-run"))


def _decided(standing: Standing, after: Sequence[str] = ()) -> Outcome:
    entry = standing.entries[-1]
    champion, previous = standing.champion, standing.previous
    payload = {"decision": entry.to_json(), "champion": champion, "rollback": previous}
    shown = {"decision": str(entry), "champion": champion or "none", "rollback to": previous or "none"}
    return Outcome(payload, [*facts(shown), *after])


def _measured(evidence: Evidence, ids: tuple[str, str]) -> list[str]:
    """Lay out the metrics on the same rows, and the drift."""
    if not evidence.compared:
        return [f"no metrics: {evidence.unmeasured}"] if evidence.unmeasured else []
    rows = []
    for pair in evidence.compared:
        text = pair.metric.text
        gain, low, high = (text(value, 2, "+") for value in (pair.gain, pair.low, pair.high))
        values = text(pair.challenger, 2), text(pair.champion, 2)
        rows.append((pair.metric.column, *values, gain, f"{low} to {high}", f"{pair.p_value:.2g}"))
    first = evidence.compared[0]
    left_out = f", {evidence.excluded:,} left out that {ids[1]} was trained on" if evidence.excluded else ""
    lines = [f"{how_many(first.rows, f'{evidence.split} rows')} of {evidence.dataset}{left_out}", ""]
    lines += table(("", *ids, f"gain of {ids[0]}", f"{first.confidence:.0%} interval", "p"), rows)
    drift = evidence.drift
    if drift is not None:
        features = "not comparable" if drift.features is None else f"{drift.features:.3g}"
        told = "" if drift.domain is None else f", new rows told apart {drift.domain:.2f} (ROC area)"
        lines += ["", f"drift: features {features} (stability index), classes {drift.classes:.1%}{told}"]
    if evidence.classes is not None:
        lines.append(f"classes: {evidence.classes}")
    if evidence.disputed is not None:
        lines.append(disputed_line(asdict(evidence.disputed)))
    return lines


def disputed_line(disputed: Mapping[str, Any]) -> str:
    """Return what to say of the training rows whose labels a champion would not give them."""
    return (
        f"labels: {disputed['champion']} would give another label to {disputed['share']:.1%} of"
        f" {disputed['rows']:,} training rows (topline inspect shows which)"
    )


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value)
