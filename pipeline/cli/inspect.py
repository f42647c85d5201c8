"""`topline inspect`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topline.pipeline.cli.arguments import ModelArgument, find_model
from topline.pipeline.cli.command import Call, Outcome
from topline.pipeline.cli.table import facts, following, table
from topline.pipeline.options import InspectConfig

if TYPE_CHECKING:
    from topline.pipeline.inspection import Inspection


def inspect(call: Call, model: ModelArgument) -> Outcome:
    """List the rows whose labels look wrong, and those that carry the classifier.

    A training row is judged as a model that has not seen it would.  The dual variables prove that judgement
    for most rows, and exact steps for others as far as --max-passes allows; the rest is reported as open.
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
    head = ("row", "label", "suggested", "suspicion", "margin", "proven")
    least, most = found.loo_error
    shown = {
        "model": found.model,
        "training rows": f"{found.rows:,}: {found.right:,} proven right when left out, {found.wrong:,}"
        f" wrong, {found.open:,} open{settled}",
        "held-out rows": f"{found.others:,}, which the model has not seen: their margins are its own",
        "leave-one-out error": f"about {found.loo_estimate:.1%}, proven to be between {least:.1%} and"
        f" {most:.1%}",
        "labels in dispute": f"{found.disputed:,} of {found.rows + found.others:,}{ranked}",
        **_duplicates(found),
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


def _duplicates(found: Inspection) -> dict[str, str]:
    if found.duplicates is None:
        return {"near duplicates": "not looked for: there are too many rows to compare"}
    labels = sum(pair.first_label != pair.second_label for pair in found.duplicates)
    splits = sum(pair.first_split != pair.second_split for pair in found.duplicates)
    return {"near duplicates": f"{labels:,} pairs with two labels, {splits:,} across splits"}
