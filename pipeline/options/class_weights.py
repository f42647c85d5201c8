"""Weights of classes as people write them: a word, pairs, a mapping or a file."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

CLASS_WEIGHT_HELP = (
    "balanced: every class counts equally, whatever its number of rows; or weights of classes, 1 for others,"
    " as cat=2,dog=0.5 or a file (.csv with a line class,weight for each, .json)"
)


def _weights(given: Any) -> Any:
    """Return "none", "balanced" or the weight of each class that is named."""
    if not isinstance(given, str | Path) or given in ("none", "balanced"):
        return given
    path = Path(given).expanduser()
    try:
        if path.suffix.lower() == ".json":
            return json.loads(path.read_text(encoding="utf-8-sig"))
        if path.suffix.lower() in (".csv", ".tsv", ".txt"):
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        else:
            lines = str(given).replace("=", ",").split(",")
            lines = [",".join(lines[place : place + 2]) for place in range(0, len(lines), 2)]
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    mark = "\t" if path.suffix.lower() == ".tsv" else ","
    rows = [[word.strip() for word in row] for row in csv.reader(lines, delimiter=mark) if row]
    if rows and rows[0][-1:] in (["weight"], ["weights"]):
        rows = rows[1:]
    if not rows or any(len(row) != 2 for row in rows):
        raise ValueError("use none, balanced, weights such as cat=2,dog=0.5, or a file of class,weight")
    return dict(rows)


ClassWeightOption = Annotated[
    Literal["none", "balanced"] | dict[str, Annotated[float, Field(ge=0.0, allow_inf_nan=False)]],
    BeforeValidator(_weights),
]
