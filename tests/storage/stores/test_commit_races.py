"""A rival that takes the number in the very moment between the look and the write."""

from __future__ import annotations

from typing import Any

import pytest

from topline.storage.errors import ConflictError
from topline.storage.stores import CommitLog, Store

Record = dict[str, Any]


class Raced:
    """A store on which a rival's record comes first, as often as there are some left."""

    def __init__(self, store: Store, *rivals: Record) -> None:
        self.store, self.rivals, self.tries = store, list(rivals), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self.tries += 1
        if self.rivals:
            rival = CommitLog(self.store, "things")
            assert rival.append(self.rivals.pop(0)) == len(rival.numbers())
        return self.store.put_if_absent(path, data)


def raced(store: Store, *rivals: Record) -> tuple[CommitLog, Raced]:
    racing: Any = Raced(store, *rivals)
    return CommitLog(racing, "things"), racing


def keys(store: Store) -> list[str]:
    return [record["key"] for record in CommitLog(store, "things").records()]


def test_a_rival_with_the_same_key_is_found_after_the_lost_race(memory_store: Store) -> None:
    log, racing = raced(memory_store, {"key": "a"})
    assert log.append({"key": "a"}, unique="key") == 1
    assert keys(memory_store) == ["a"]
    assert racing.tries == 1


def test_rivals_with_other_keys_only_take_numbers(memory_store: Store) -> None:
    log, _ = raced(memory_store, {"key": "b"}, {"key": "c"})
    assert log.append({"key": "a"}, unique="key") == 3
    assert keys(memory_store) == ["b", "c", "a"]


def test_a_rival_with_the_same_key_may_come_second(memory_store: Store) -> None:
    log, _ = raced(memory_store, {"key": "b"}, {"key": "a"})
    assert log.append({"key": "a"}, unique="key") == 2
    assert keys(memory_store) == ["b", "a"]


def test_without_a_key_a_rival_is_only_a_rival(memory_store: Store) -> None:
    log, _ = raced(memory_store, {"key": "a"})
    assert log.append({"key": "a"}) == 2
    assert keys(memory_store) == ["a", "a"]


def test_a_number_that_is_taken_is_not_written_again(memory_store: Store) -> None:
    log, _ = raced(memory_store, {"key": "b"})
    assert log.append_as(1, {"key": "a"}) is False
    assert log.append_as(2, {"key": "a"}) is True
    assert keys(memory_store) == ["b", "a"]


def test_a_revision_is_made_anew_from_what_came_first(memory_store: Store) -> None:
    CommitLog(memory_store, "things").append({"key": "start"})
    log, _ = raced(memory_store, {"key": "rival"})
    seen: list[tuple[str, int]] = []

    def change(latest: Any, seq: int) -> Record:
        seen.append((latest["key"], seq))
        return {"key": latest["key"] + "!"}

    revised = log.revise(change)
    assert seen == [("start", 2), ("rival", 3)]
    assert (revised["key"], revised["seq"]) == ("rival!", 3)
    assert keys(memory_store) == ["start", "rival", "rival!"]


@pytest.mark.parametrize("how", ["append", "revise"])
def test_who_always_loses_is_told_so(memory_store: Store, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr("topline.storage.stores.commit_log._TRIES", 4)
    CommitLog(memory_store, "things").append({"key": "start"})
    log, _ = raced(memory_store, *({"key": str(number)} for number in range(9)))
    loses = {
        "append": lambda: log.append({"key": "me"}),
        "revise": lambda: log.revise(lambda latest, seq: {"key": "me"}),
    }
    with pytest.raises(ConflictError, match="commits/things takes no new record"):
        loses[how]()
    assert "me" not in keys(memory_store)


def test_logs_lie_where_their_root_says(memory_store: Store) -> None:
    log = CommitLog(memory_store, "things", root="sweeps/logs")
    assert log.folder == "sweeps/logs/things"
    assert log.append({"key": "a"}) == 1
    memory_store.write_bytes("sweeps/logs/things/00000009.json.part", b"")
    memory_store.write_bytes("sweeps/logs/things/notes.json", b"")
    assert log.numbers() == [1]
    assert memory_store.exists("sweeps/logs/things/00000001.json")
