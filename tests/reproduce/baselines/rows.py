"""The rows that a baseline is trained on, checked."""

from __future__ import annotations

from typing import Any

from topline.solvers.core.problem import checked_rows
from topline.solvers.core.rows import nonfinite_rows
from topline.solvers.errors import NonFiniteError


def finite_rows(X: Any) -> Any:
    """Return features (n, d), an array or CSR matrix, of which every value is finite."""
    rows: Any = checked_rows(X)
    bad = nonfinite_rows(rows)
    if len(bad):
        raise NonFiniteError(f"row {bad[0]} of the features holds NaN or infinity; fix or drop such rows")
    return rows
