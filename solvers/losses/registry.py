"""Losses by name, for configurations and model records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from topline.solvers.errors import InvalidProblemError
from topline.solvers.losses import entropy, hinges, multilabel
from topline.solvers.losses.base import Loss, exponential, flat, linear
from topline.solvers.losses.one_vs_all import OneVsAll
from topline.solvers.names import LOSS_RULES, not_known
from topline.solvers.typing import Float64Array

_CONSTRUCTORS: tuple[Callable[..., Loss], ...] = (
    hinges.MaxHinge, hinges.StructuredHinge, hinges.TopKHinge, hinges.TopKOthersHinge, hinges.UsunierHinge,
    hinges.WeightedTopKHinge, hinges.WeightedUsunierHinge, entropy.Softmax, entropy.LDRKL,
    entropy.SumExponential, entropy.TopKEntropy, entropy.TruncatedTopKEntropy, hinges.PolyhedralTopK,
    partial(OneVsAll, "hinge"), partial(OneVsAll, "logistic"), multilabel.MultilabelHinge,
    multilabel.MultilabelSoftmax,
)  # fmt: skip
#: Every loss by name, with the parameter of its constructor, if any.
LOSSES: Mapping[str, tuple[Callable[..., Loss], str | None]] = MappingProxyType(
    {
        name: (constructor, rule.parameter)
        for (name, rule), constructor in zip(LOSS_RULES.items(), _CONSTRUCTORS, strict=True)
    }
)

RANK_WEIGHTS: Mapping[str, Callable[[int], Float64Array]] = MappingProxyType(
    {"flat": flat, "linear": linear, "exponential": exponential}
)


def loss_from_dict(record: Mapping[str, Any]) -> Loss:
    """Make a loss from its `Loss.to_dict` record; InvalidProblemError for an unknown one."""
    fields = dict(record)
    constructor, parameter = _look_up(fields.pop("name", None))
    expected = set() if parameter is None else {parameter}
    optional = {"k"} if LOSS_RULES[record["name"]].optional_k else set()
    if not expected <= set(fields) <= expected | optional:
        raise InvalidProblemError(
            f"the loss {record.get('name')!r} is described by {sorted(fields)}; it takes {sorted(expected)}"
        )
    return constructor(**fields)


def make_loss(
    name: str,
    k: int | None = None,
    weights: str | Sequence[float] | Float64Array | None = None,
    margins: Any = None,
    temperature: float | None = None,
) -> Loss:
    """Make a loss from the options of a command line or configuration.

    `k` is for losses that count guesses, such as topk_hinge; `weights` for weighted ones, as numbers, or as
    "flat", "linear" or "exponential" together with k; `margins` (m, m) for structured_hinge, which may also
    take k; `temperature` for ldr_kl, which has one by default.  InvalidProblemError for an unknown name and
    for missing or extra parameters.

    Examples
    --------
    >>> from topline.solvers.losses import make_loss
    >>> make_loss("topk_hinge", k=5)
    TopKHinge(k=5)
    """
    constructor, parameter = _look_up(name)
    options = {"k": k, "weights": weights, "margins": margins, "temperature": temperature}
    given = {key for key, value in options.items() if value is not None}
    if parameter == "rho":
        _refuse_others(name, given, {"k", "weights"})
        return constructor(_rank_weights(name, k, weights))
    optional = {"k"} if LOSS_RULES[name].optional_k else set()
    _refuse_others(name, given, optional if parameter is None else {parameter, *optional})
    if parameter is None or (parameter == "temperature" and temperature is None):
        return constructor()
    value = options[parameter]
    if value is None:
        raise InvalidProblemError(f"the loss {name} needs {parameter}, which is not given")
    return constructor(value, k) if optional and k is not None else constructor(value)


def _look_up(name: Any) -> tuple[Callable[..., Loss], str | None]:
    if name not in LOSSES:
        raise InvalidProblemError(not_known("loss", name, LOSSES))
    return LOSSES[name]


def _refuse_others(name: str, given: set[str], accepted: set[str]) -> None:
    surplus = sorted(given - accepted)
    if surplus:
        able = [loss for loss, rule in LOSS_RULES.items() if rule.parameter in surplus]
        other = f", or use {' or '.join(able)}" if able else ""
        raise InvalidProblemError(f"the loss {name} takes no {' and no '.join(surplus)}; leave it out{other}")


def _rank_weights(name: str, k: int | None, weights: Any) -> Any:
    if weights is None:
        raise InvalidProblemError(f"the loss {name} needs weights: flat, linear, exponential or numbers")
    if not isinstance(weights, str):
        if k is not None and len(weights) != k:
            raise InvalidProblemError(f"k is {k} but {len(weights)} weights are given; leave k out")
        return weights
    if weights not in RANK_WEIGHTS:
        raise InvalidProblemError(not_known("kind of weights", weights, RANK_WEIGHTS))
    if k is None:
        raise InvalidProblemError(f"{weights} weights need k, which is not given")
    return RANK_WEIGHTS[weights](k)
