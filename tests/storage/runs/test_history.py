"""Histories that grow while they are read, that are long, and that come from elsewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from topline.solvers.core.state import IterationRecord, Objective
from topline.storage.errors import FormatError, IntegrityError
from topline.storage.runs import HistoryReader, HistoryWriter, create_run, finish_run, read_history
from topline.storage.runs import history as history_module
from topline.storage.runs.history import history_path
from topline.storage.schema import HISTORY_ENCODING, encoding
from topline.storage.stores import Store
from topline.storage.verification import verify_store

ROOT = Path(__file__).resolve().parents[3]


def rounds(reader: HistoryReader) -> list[int]:
    return [record["round"] for record in reader.read_new()]


def test_a_reader_gives_every_record_once(any_store: Store) -> None:
    reader = HistoryReader(any_store, "r0001")
    assert rounds(reader) == []
    with HistoryWriter(any_store, "r0001") as writer:
        for number in range(3):
            writer.append({"round": number})
        writer.flush()
        assert rounds(reader) == [0, 1, 2]
        assert rounds(reader) == []
        writer.append({"round": 3})
    with HistoryWriter(any_store, "r0001") as writer:
        writer.append({"round": 4})
    assert rounds(reader) == [3, 4]
    # One that stops in the middle goes on from there.
    again = HistoryReader(any_store, "r0001")
    assert next(again.read_new())["round"] == 0
    assert rounds(again) == [1, 2, 3, 4]


def test_a_line_is_read_when_it_is_whole(local_store: Store) -> None:
    place = local_store.local_path / history_path("r0001")
    place.parent.mkdir(parents=True)
    place.write_bytes(b'{"round": 0}\n{"rou')
    reader = HistoryReader(local_store, "r0001")
    assert rounds(reader) == [0]
    place.write_bytes(b'{"round": 0}\n{"round": 1}\n\x00\x00\n')
    assert rounds(reader) == [1]
    # The process that goes on with the run cuts off what the crash had left.
    with HistoryWriter(local_store, "r0001") as writer:
        writer.append({"round": 2})
    assert rounds(reader) == [2]
    place.write_bytes(place.read_bytes() + b'nonsense\n{"round": 3}\n')
    with pytest.raises(IntegrityError, match=r"line 4 of .* is damaged"):
        rounds(reader)
    place.write_bytes(b'{"round": 0}\n')
    with pytest.raises(IntegrityError, match="shorter than it was"):
        rounds(reader)


def test_lines_longer_than_what_is_read_at_once(local_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "_CHUNK", 64)
    with HistoryWriter(local_store, "r0001") as writer:
        for number in range(5):
            writer.append({"round": number, "text": "x" * 50 * number})
    place = local_store.local_path / history_path("r0001")
    with place.open("ab") as file:
        file.write(b'{"torn": "' + b"x" * 200)
    assert [record["round"] for record in read_history(local_store, "r0001")] == [0, 1, 2, 3, 4]
    with HistoryWriter(local_store, "r0001") as writer:
        writer.append({"round": 5})
    assert [record["round"] for record in read_history(local_store, "r0001")] == [0, 1, 2, 3, 4, 5]


BEHIND = {
    "a record of nobody's": b'{"round": 7}\n',
    "text without an end": b"x" * (17 << 20),
    "brackets": b"[" * 100_000 + b"\n{}\n",
}


@pytest.mark.parametrize("added", BEHIND.values(), ids=BEHIND)
def test_what_is_put_behind_the_end_of_a_run_is_noticed(local_store: Store, added: bytes) -> None:
    run = create_run(local_store, {})
    with HistoryWriter(local_store, run) as writer:
        writer.append({"event": "begin", **encoding(HISTORY_ENCODING)}, {"round": 0}, {"event": "end"})
    finish_run(local_store, run, {"status": "solved"})
    assert verify_store(local_store) == []
    with (local_store.local_path / history_path(run)).open("ab") as file:
        file.write(added)
    assert [finding.path for finding in verify_store(local_store)] == [history_path(run)]


def test_a_run_that_is_resumed_goes_on_behind_its_end(local_store: Store) -> None:
    run = create_run(local_store, {})
    for number in range(2):
        with HistoryWriter(local_store, run) as writer:
            writer.append({"event": "begin", **encoding(HISTORY_ENCODING)}, {"round": number})
        assert [found for found in verify_store(local_store) if not found.harmless] == []
        finish_run(local_store, run, {"status": "max_passes"})


def test_an_object_is_never_rewritten_beyond_a_part(
    memory_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_module, "_PART_BYTES", 200)
    reader = HistoryReader(memory_store, "r0001")
    read = []
    for number in range(0, 100, 10):
        with HistoryWriter(memory_store, "r0001", interval=1e9) as writer:
            for more in range(10):
                writer.append({"round": number + more})
        read += rounds(reader)
    assert read == list(range(100))
    assert rounds(HistoryReader(memory_store, "r0001")) == read
    parts = memory_store.list("runs/r0001")
    assert parts[:2] == ["history.00001.jsonl", "history.00002.jsonl"]
    assert len(parts) == 8
    assert all(memory_store.size(f"runs/r0001/{name}") <= 200 for name in parts)


def test_a_history_of_a_later_version_is_refused(local_store: Store) -> None:
    with HistoryWriter(local_store, "r0001") as writer:
        writer.append({"event": "begin", **encoding(HISTORY_ENCODING)})
        writer.append({"event": "begin", **encoding(HISTORY_ENCODING), "encoding-version": "9"})
    reader = HistoryReader(local_store, "r0001")
    with pytest.raises(FormatError, match=r"history\.jsonl has format version 9; .* upgrade it"):
        list(reader.read_new())


def test_every_field_of_a_round_is_described() -> None:
    record = IterationRecord(0, 1, 0.0, Objective(1.0, 0.0), 1.0, 1.0)
    guide = (ROOT / "storage" / "README.md").read_text(encoding="utf-8")
    table = guide.split("### History")[1].split("```text\n")[1].split("```")[0]
    described = set(re.findall(r"[a-z_]+", "\n".join(line[:22] for line in table.splitlines())))
    looked_at = {"held_out", "held_out_rows", "held_out_split"}
    assert described == {*json.loads(json.dumps(record.to_dict())), "at", *looked_at}
