"""`topline inspect` and `topline suggest`: labels to correct, and rows to label next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from topline.pipeline.cli.arguments import ModelArgument, find_model
from topline.pipeline.cli.command import Call, Outcome
from topline.pipeline.cli.table import facts, following, table
from topline.pipeline.options import InspectConfig, SuggestConfig
from topline.solvers.counts import how_many

if TYPE_CHECKING:
    from topline.pipeline.inspection import Inspection
    from topline.pipeline.inspection.suspects import ClassGain

#: What people call the rows of a split.
SPLIT_WORDS = {"train": "training", "val": "validation", "test": "test", "calibration": "calibration"}


def inspect(call: Call, model: ModelArgument) -> Outcome:
    """List the rows whose labels look wrong, and those that carry the classifier.

    A training row is judged as a model that has not seen it would.  The dual variables prove that judgement
    for most rows, and exact steps for others as far as --max-passes allows; the rest is reported as open, and
    estimated by models that were trained without a fold of the rows.
    """
    from topline.pipeline.inspection import inspect_model

    url = find_model(model)
    found: Inspection = inspect_model(url, call.config(InspectConfig), call.progress)
    rows = [
        (
            one.sample_id,
            one.label,
            one.suggested,
            f"{one.suspicion:.3f}",
            f"{one.loo_margin:+.3f}",
            one.decided,
        )
        for one in found.suspects
    ]
    settled = " (--max-passes settles them one at a time, in some tens of passes each)" if found.open else ""
    ranked = ", by a softmax that starts at the model's weights" if found.second_opinion else ""
    if found.disputed_though_right:
        ranked += f"; {found.disputed_though_right:,} of them the model itself proves right"
    where = ", ".join(f"{rows:,} {SPLIT_WORDS[split]}" for split, rows in found.disputed_by_split.items())
    head = ("row", "label", "suggested", "suspicion", "margin", "proven")
    least, most = found.loo_error
    shown = {
        "model": found.model,
        "training rows": f"{found.rows:,}: {found.right:,} proven right when left out, {found.wrong:,}"
        f" wrong, {found.open:,} open{settled}",
        "held-out rows": f"{found.others:,}, which the model has not seen: their margins are its own",
        "leave-one-out error": f"{_estimate(found)}proven to be between {least:.1%} and {most:.1%}",
        "labels in dispute": f"{found.disputed:,} of {found.rows + found.others:,}"
        + (f" ({where})" if where else "")
        + ranked,
        **_duplicates(found),
        **({"off the topic": how_many(len(found.off_topic), "rows")} if found.off_topic else {}),
        **({"more rows would help": _first(found.classes)} if found.classes else {}),
        **({"table": found.output} if found.output else {}),
        **({"page": found.page} if found.page else {}),
    }
    if found.output:
        edited = ("topline", "train", "--from", url, "--labels-from", found.output)
        after = following(edited, hint="once labels are corrected there")
    else:
        listed = ("topline", "inspect", url, "--output", "suspects.csv", "--page", "suspects.html")
        after = following(listed)
    return Outcome(found.to_dict(), [*(table(head, rows) if rows else []), "", *facts(shown), *after])


def suggest(
    call: Call,
    model: ModelArgument,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Rows to suggest")] = 50,
) -> Outcome:
    """Choose the new images or rows that are most worth a label.

    They are those that the model is least sure of, no two of them alike; rows of its dataset are left out.
    """
    from topline.pipeline.inspection import suggest_rows

    config = call.config(SuggestConfig)
    url = find_model(model)
    found = suggest_rows(url, config, count, call.progress)
    head = ("row", "first", "second", "lead", "stands for")
    rows = [
        (one.name, one.prediction, one.second, f"{one.lead:.3f}", f"{one.stands_for:,}")
        for one in found.suggested[:20]
    ]
    shown = {"rows": f"{found.rows:,}: {found.known:,} known, {found.unread:,} unreadable"}
    shown |= {name: place for name, place in (("table", found.output), ("page", found.page)) if place}
    return Outcome(found.to_dict(), [*table(head, rows), "", *facts(shown)])


def _estimate(found: Inspection) -> str:
    if found.loo_estimate is None or found.loo_interval is None:
        return ""
    low, high = found.loo_interval
    by = f" on {found.folds} held-out folds" if found.folds and found.open else ""
    return f"{found.loo_estimate:.1%}{by} ({100 * low:.1f} to {100 * high:.1f}), "


def _first(classes: Sequence[ClassGain], most: int = 3) -> str:
    """Return the names of the classes that would gain most for certain."""
    named = ", ".join(one.name for one in classes[:most])
    more = len(classes) - most
    return named + (f" and {how_many(more, 'more classes')}" if more > 0 else "")


def _duplicates(found: Inspection) -> dict[str, str]:
    if found.duplicates is None:
        return {"near duplicates": "not looked for: there are too many rows to compare"}
    labels = sum(pair.first_label != pair.second_label for pair in found.duplicates)
    splits = sum(pair.first_split != pair.second_split for pair in found.duplicates)
    return {"near duplicates": f"{labels:,} pairs with two labels, {splits:,} across splits"}
