"""Names of losses and methods, and the rules of their parameters: a table that is cheap to import.

Options and command lines read it before anything is compiled; `topline.solvers.losses.registry` and
`topline.solvers.methods.registry` map the names to objects.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias

#: Parameter of a loss's constructor.
Parameter: TypeAlias = Literal["k", "rho", "margins", "temperature"]


class LossRule(NamedTuple):
    """The one `parameter` of a loss's constructor, if any ("rho" may be made from k), and what it takes.

    With `of_others` it ranks only the m - 1 other classes, so that k < m; otherwise k <= m.  A `smooth` one
    is differentiable and takes no smoothing; with `optional_k` it also takes k guesses, one by default.
    """

    parameter: Parameter | None = None
    of_others: bool = False
    smooth: bool = False
    optional_k: bool = False

    @property
    def takes_k(self) -> bool:
        """Whether it takes k, directly or for its rank weights."""
        return self.parameter in ("k", "rho")


#: The rules of every loss, by name.
LOSS_RULES: Mapping[str, LossRule] = MappingProxyType(
    {
        "max_hinge": LossRule(),
        "structured_hinge": LossRule("margins", optional_k=True),
        "topk_hinge": LossRule("k"),
        "topk_others_hinge": LossRule("k", of_others=True),
        "usunier_hinge": LossRule("k"),
        "weighted_topk_hinge": LossRule("rho"),
        "weighted_usunier_hinge": LossRule("rho"),
        "softmax": LossRule(smooth=True),
        "ldr_kl": LossRule("temperature", smooth=True),
        "sum_exponential": LossRule(smooth=True),
        "topk_entropy": LossRule("k", of_others=True, smooth=True),
        "truncated_topk_entropy": LossRule("k", of_others=True, smooth=True),
        "polyhedral_topk": LossRule("k", of_others=True),
        "one_vs_all_hinge": LossRule(),
        "one_vs_all_logistic": LossRule(smooth=True),
        "multilabel_hinge": LossRule(),
        "multilabel_softmax": LossRule(smooth=True),
    }
)

#: The default loss, which serves top-1 and top-5 accuracy alike.
DEFAULT_LOSS = "softmax"
#: Default number of guesses; fewer if that is more than half of the classes.
DEFAULT_K = 5

METHOD_NAMES = (
    "auto", "dual_ascent", "sdca", "newton", "fw", "fw_away", "fw_pairwise", "fw_fully_corrective",
    "fw_away_columns", "fw_pairwise_columns", "fw_open_loop", "projected_gradient", "lbfgs",
)  # fmt: skip
#: The default method.
DEFAULT_METHOD = "auto"


#: Losses by their names in other libraries.
_ELSEWHERE = {"cross_entropy": "softmax", "log_loss": "softmax", "logistic": "softmax", "hinge": "max_hinge"}
#: Least likeness of a word to a known one for which it may be a slip.
_ALIKE = 0.7


def meant(word: object, known: Iterable[str]) -> str | None:
    """Return the known word that `word` is likely to be a slip for, None if there is none."""
    spelled = {name.lstrip("-").replace("-", "_"): name for name in known}
    text = str(word).lstrip("-").replace("-", "_").lower()
    close = [_ELSEWHERE.get(text), *difflib.get_close_matches(text, spelled, 1, _ALIKE)]
    return next((spelled[name] for name in close if name in spelled), None)


def not_known(kind: str, name: object, known: Iterable[str]) -> str:
    """Return the sentence that refuses the name of a loss, a method and so on, with what may be meant."""
    close = meant(name, known)
    instead = f"; use one of {', '.join(known)}" if close is None else f": did you mean {close!r}?"
    return f"there is no {kind} named {name!r}{instead}"


def default_k(m: int) -> int:
    """Return the default number of guesses among m classes."""
    return max(1, min(DEFAULT_K, m // 2))


def k_note(loss: str, k: int | None, m: int) -> str | None:
    """Return what a loss of k guesses among m classes trades away, None unless k is a large share."""
    if k is None or loss not in LOSS_RULES or not LOSS_RULES[loss].takes_k or not m < 2 * k <= 2 * m:
        return None
    return (
        f"the loss {loss} with k = {k} of {m} classes gives up top-1 accuracy for a place among the first"
        f" {k}, which chance alone reaches in {k / m:.0%}: use a k of {default_k(m)} or less, or the loss"
        f" {DEFAULT_LOSS}"
    )
