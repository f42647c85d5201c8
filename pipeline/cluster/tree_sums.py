"""The sums of a round merged between the workers, where these are many.

Merging goes along the tree of `topline.solvers.core.answers`, whose nodes say what is added to what: the
total is bitwise the one that the coordinator would make of everything.  A worker adds two sums, or a few, and
passes one on; the coordinator gets no more than `MOST_SUMS` of them, whatever the number of workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from topline.pipeline.cluster.assignment import Assignment
from topline.pipeline.cluster.calls import AnswerOf, Call
from topline.pipeline.cluster.messages import Sums, WorkerAnswer
from topline.solvers.core.answers import Answer, Node, TreeMerger

#: Up to so many workers send their sums to the coordinator themselves.
MOST_SUMS = 16


@dataclass(frozen=True)
class Merge:
    """`worker` adds up the sums over the blocks first..stop-1 among those that the calls `sources` answer."""

    worker: str
    first: int
    stop: int
    sources: tuple[int, ...]


@dataclass(frozen=True)
class MergePlan:
    """What is merged where: after the requests of the owners, calls 0, 1, ..., come those of `merges`.

    `wanted` are the numbers of the calls whose answers go to the coordinator.
    """

    merges: tuple[Merge, ...]
    wanted: tuple[int, ...]


def plan_merges(owned: Assignment, blocks: int) -> MergePlan | None:
    """Plan the merges of the sums over `blocks` blocks; None where their owners are few.

    First come the nodes of the level at which about two workers have a part in each, then pairs of those.
    """
    if len(owned) <= MOST_SUMS:
        return None
    # A level has the number of blocks, halved so many times and rounded up, of nodes.
    level = next(level for level in range(blocks.bit_length()) if -(-blocks >> level) <= -(-len(owned) // 2))
    parts: dict[int, list[tuple[str, int]]] = {}
    for number, (worker, spans) in enumerate(owned.items()):
        starts = part_starts(spans[0].index, spans[-1].index + 1, blocks)
        for place in dict.fromkeys(start >> level for start in starts):
            parts.setdefault(place, []).append((worker, number))
    merges: list[Merge] = []
    while True:
        for place in sorted(parts):
            # A node of one part is as it should be, except for an owner's answer, which may hold more.
            if len(parts[place]) > 1 or parts[place][0][1] < len(owned):
                worker = parts[place][0][0]
                sources = tuple(number for _, number in parts[place])
                merges.append(Merge(worker, place << level, (place + 1) << level, sources))
                parts[place] = [(worker, len(owned) + len(merges) - 1)]
        if len(parts) <= MOST_SUMS:
            return MergePlan(tuple(merges), tuple(parts[place][0][1] for place in sorted(parts)))
        level, below = level + 1, parts
        parts = {}
        for place in sorted(below):
            parts.setdefault(place >> 1, []).extend(below[place])


def part_starts(first: int, stop: int, blocks: int) -> list[int]:
    """Return the first blocks of the sums to which those over the blocks first..stop-1 merge on their own."""
    starts = []
    while first < stop:
        starts.append(first)
        size = first & -first if first else 1 << (blocks - 1).bit_length()
        # Beyond the last block there is nothing: a node that reaches over it is whole.
        while first + size > stop and stop < blocks:
            size >>= 1
        first += size
    return starts


def with_merges(
    requests: Sequence[Call], owned: Assignment, blocks: int
) -> tuple[list[Call], Sequence[Call]]:
    """Add the calls that merge the answers to `requests`, one an owner, and say which answers to fetch."""
    plan, calls = plan_merges(owned, blocks), [*requests]
    if plan is None:
        return calls, requests
    names = [call.worker for call in requests] + [""] * len(plan.merges)
    for merge in plan.merges:
        sources = [AnswerOf(calls[number]) for number in merge.sources]
        come_from = [names[number] for number in merge.sources]
        arguments = (blocks, merge.first, merge.stop, come_from, *sources)
        calls.append(Call(merge.worker, merged, arguments))
    return calls, [calls[number] for number in plan.wanted]


def joined(names: Sequence[str], sources: Iterable[WorkerAnswer | Sums]) -> Sums:
    """Put answers of the workers `names`, or sums of such, beside each other."""
    parts: list[tuple[Node, Answer]] = []
    answers: dict[str, WorkerAnswer] = {}
    for name, source in zip(names, sources, strict=True):
        parts.extend(source.parts)
        answers |= {name: replace(source, parts=[])} if isinstance(source, WorkerAnswer) else source.answers
    return Sums(parts, answers)


def merged(blocks: int, first: int, stop: int, names: Sequence[str], *sources: WorkerAnswer | Sums) -> Sums:
    """Merge the sums over the blocks first..stop-1 among those of `sources`, which came from `names`."""
    everything = joined(names, sources)
    merger: TreeMerger[Answer] = TreeMerger(blocks)
    for node, stats in everything.parts:
        if first <= node.place << node.level < stop:
            merger.add(node, stats)
    return Sums(merger.parts(), everything.answers)
