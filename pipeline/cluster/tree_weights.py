"""Weights on their way to many workers, which hand them on to each other.

The coordinator sends W to `FAN` workers, and each of them hands it on to as many others as soon as it has
come: K workers have it after about log(K) / log(FAN) levels of FAN copies, where K would have to pass the
coordinator's own link.  What a worker hands on is what it was sent, so that no bit depends on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from topline.pipeline.cluster.calls import DIRECT_BYTES, AnswerOf, Call, nbytes
from topline.pipeline.cluster.sent_weights import SentOperation

#: Up to so many workers are sent W by the coordinator itself.
MOST_COPIES = 8
#: Copies that the coordinator, and every worker that hands W on, sends of a larger number's.
FAN = 4


def sender_of(number: int) -> int | None:
    """Return the number of the worker that hands W on to this one; None for the coordinator.

    A level has FAN times the workers of the one before, which deal them out among themselves.
    """
    first, width = 0, FAN
    while number >= first + width:
        first, width = first + width, FAN * width
    before = width // FAN
    return first - before + (number - first) % before if first else None


def requested(
    owners: Sequence[str], function: Callable[..., Any], names: tuple[Any, ...], message: SentOperation
) -> tuple[list[Call], list[Call]]:
    """Return the calls that hand a message on, and `function(*names, message)` on every owner after them.

    A message that is small, or goes to few, comes from the coordinator: every level takes delays.
    """
    if len(owners) <= MOST_COPIES or nbytes(message) <= DIRECT_BYTES:
        return [], [Call(owner, function, (*names, message)) for owner in owners]
    senders = [sender_of(number) for number in range(len(owners))]
    relays: dict[int, Call] = {}
    requests = []
    for number, (owner, sender) in enumerate(zip(owners, senders, strict=True)):
        source = message if sender is None else AnswerOf(relays[sender])
        if number in senders:
            relays[number] = Call(owner, handed_on, (source,))
            source = AnswerOf(relays[number])
        requests.append(Call(owner, function, (*names, source)))
    return [*relays.values()], requests


def handed_on(message: SentOperation) -> SentOperation:
    """Return what has come, for this worker and those that it hands it on to."""
    return message
