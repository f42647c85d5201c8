"""Notices: what the decision log says on a stream, in a file and in MLflow, and the sign of life."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from topline.pipeline.errors import ConfigError, InterruptedRunError
from topline.pipeline.notices import (
    CHAMPION,
    DECISION,
    FILE_BYTES,
    FILES_KEPT,
    MODEL,
    MOST_WAITING,
    NOTIFY,
    Kind,
    Notice,
    NoticeLog,
    Teller,
    addresses,
    decision_notices,
    mlflow_sender,
    told,
)
from topline.pipeline.telemetry import HEARTBEAT_TIMEOUT, deployed_run, pulse, served
from topline.storage.models import DecisionRecord
from topline.storage.served_schedule import ServedSchedule, note_schedule, read_schedule
from topline.storage.stores import LeaseHeldError, open_store

WHEN = "2026-03-01T02:00:00+00:00"


def kept(text: str = "m0002 stays") -> Notice:
    return Notice(Kind.KEPT, "store", text, {"model": "m0003"}, WHEN)


@pytest.mark.parametrize(
    ("action", "kind", "said"),
    [
        ("promote", Kind.PROMOTED, "m0002 is champion in place of m0001: better"),
        ("keep", Kind.KEPT, "m0001 stays champion, m0002 is not promoted: better"),
        ("rollback", Kind.ROLLED_BACK, "m0002 is champion again: better"),
    ],
)
def test_a_decision_is_one_notice(action: str, kind: Kind, said: str) -> None:
    entry = DecisionRecord(action, "m0002", "better", "a flow", {}, False, "m0001", WHEN)
    (found,) = decision_notices(entry, "store")
    assert (found.kind, found.text, found.when, found.facts["by"]) == (kind, said, WHEN, "a flow")


@pytest.mark.parametrize(("index", "told_of"), [(0.24, False), (0.26, True), (None, False)])
def test_drift_beside_a_decision_is_another(index: float | None, told_of: bool) -> None:
    entry = DecisionRecord("keep", "m0002", "same", "a flow", {"drift": {"features": index}}, False, "m0001")
    kinds = [found.kind for found in decision_notices(entry, "store")]
    assert kinds == [Kind.KEPT, *([Kind.DRIFT] if told_of else [])]


@pytest.mark.parametrize(("repeated", "kind"), [(2, Kind.KEPT), (3, Kind.KEPT_AGAIN), (7, Kind.KEPT_AGAIN)])
def test_the_same_reason_three_times_is_a_warning(repeated: int, kind: Kind) -> None:
    entry = DecisionRecord("keep", "m0002", "worse", "a flow", champion_before="m0001", repeated=repeated)
    (found,) = decision_notices(entry, "store")
    assert found.kind is kind


def test_a_line_goes_to_the_stream_and_to_the_file(tmp_path: Path) -> None:
    stream = io.StringIO()
    with closing(NoticeLog(stream, tmp_path / "logs" / "serve.log")) as log:
        log.write(kept("two\nlines"))
    assert stream.getvalue() == f"{WHEN} kept: two lines\n"
    assert (tmp_path / "logs" / "serve.log").read_text() == stream.getvalue()


def test_as_json_each_line_is_an_object() -> None:
    stream = io.StringIO()
    with closing(NoticeLog(stream, as_json=True)) as log:
        log.write(kept("ein Bär"))
    assert json.loads(stream.getvalue()) == {
        "when": WHEN, "event": "kept", "store": "store", "text": "ein Bär", "model": "m0003",
    }  # fmt: skip


def test_the_file_is_rotated_and_the_oldest_goes(tmp_path: Path) -> None:
    with closing(NoticeLog(io.StringIO(), tmp_path / "serve.log")) as log:
        for _ in range(2 * (FILES_KEPT + 2)):
            log.write(kept("x" * (FILE_BYTES // 2 - 100)))
    files = list(tmp_path.iterdir())
    assert len(files) == 1 + FILES_KEPT
    assert all(file.stat().st_size <= FILE_BYTES for file in files)


def test_a_reader_that_left_costs_the_line_and_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    with closing(NoticeLog(Gone(), tmp_path / "serve.log")) as log:
        log.write(kept("first"))
        log.write(kept("second"))
    assert len((tmp_path / "serve.log").read_text().splitlines()) == 2
    assert capsys.readouterr().err.count("a line of the log is lost") == 1


def test_a_log_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        NoticeLog(io.StringIO(), tmp_path / "file" / "serve.log")


def test_addresses_are_checked_before_anything_is_served() -> None:
    environ = {NOTIFY: "mailto://me:word@example.org json://127.0.0.1:9"}
    assert addresses(["https://example.org/hook"], environ) == (
        "https://example.org/hook", "mailto://me:word@example.org", "json://127.0.0.1:9",
    )  # fmt: skip
    with pytest.raises(ConfigError, match=f"environment variable {NOTIFY}") as refused:
        addresses(["mailto://me:word@example.org"], {})
    assert "word@" not in str(refused.value)
    for nothing in ("somewhere", "gopher://example.org", "http://"):
        with pytest.raises(ConfigError, match="is not an address that notices can be sent to"):
            addresses([nothing], {})


def test_a_webhook_gets_what_is_to_be_told() -> None:
    received: list[dict[str, str]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with told([f"http://127.0.0.1:{server.server_port}/hook"]) as tell:
            tell(Notice(Kind.STARTED, "store", "a run", {}, WHEN))
            tell(kept("m0001 stays"))
        server.shutdown()
        thread.join()
    assert [(one["title"], one["message"], one["type"]) for one in received] == [
        ("topline kept: store", "m0001 stays", "info")
    ]


def test_what_does_not_arrive_is_said_without_its_secret(caplog: pytest.LogCaptureFixture) -> None:
    def send(notice: Notice) -> Sequence[str]:
        return ["mailto://me:word@example.org"]

    teller = Teller(send)
    teller.tell(kept())
    teller.close()
    assert "did not reach" in caplog.text
    assert "word@" not in caplog.text


def test_a_client_that_fails_costs_its_own_notice(caplog: pytest.LogCaptureFixture) -> None:
    arrived: list[str] = []

    def send(notice: Notice) -> Sequence[str]:
        if not caplog.text:
            raise ValueError("an answer of mailto://me:word@example.org is no JSON")
        arrived.append(notice.text)
        return []

    teller = Teller(send)
    teller.tell(kept("first"))
    teller.tell(kept("second"))
    teller.close()
    assert arrived == ["second"]
    assert caplog.text.count("was not sent (ValueError)") == 1
    assert "word@" not in caplog.text


def test_a_slow_receiver_holds_nobody_up_and_the_newest_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    arrived: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def send(notice: Notice) -> Sequence[str]:
        begun.set()
        go_on.wait()
        arrived.append(notice.text)
        return []

    teller = Teller(send)
    teller.tell(kept("first"))
    begun.wait()
    for number in range(MOST_WAITING + 3):
        teller.tell(kept(str(number)))
    go_on.set()
    teller.close()
    # One more gives way to the sign that ends the thread where it comes before the thread takes any.
    assert arrived[0] == "first"
    assert arrived[-1] == str(MOST_WAITING + 2)
    assert MOST_WAITING <= len(arrived) <= MOST_WAITING + 1
    assert "too many notices wait" in caplog.text


def test_the_sign_of_life_comes_and_its_end_is_said(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", create=True)
    times = iter(f"2026-03-01T02:00:{second:02d}+00:00" for second in range(60))
    waited, beaten = threading.Event(), threading.Event()

    def wait(ended: threading.Event, seconds: float) -> bool:
        if waited.is_set():
            beaten.set()
            ended.wait()
        waited.set()
        return ended.is_set()

    with pulse(store, "6h", "UTC", clock=lambda: next(times), wait=wait):
        beaten.wait()
        seen = read_schedule(store)
        assert (seen.since[-8:-6], seen.beat[-8:-6], seen.ended) == ("00", "01", "")
    seen = read_schedule(store)
    assert (seen.beat, seen.ended) == (seen.ended, "2026-03-01T02:00:02+00:00")


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
BEATING = ServedSchedule("0 2 * * *", "UTC", process="host:7").beating(NOON.isoformat())
DEPLOYED = replace(BEATING, process="retrain/nightly", deployment=True)


@pytest.mark.parametrize(
    ("schedule", "hours", "state"),
    [
        (BEATING, 0, "served"),
        (replace(BEATING, ended=WHEN), 99, "ended"),
        (replace(BEATING, ended=WHEN, error="OSError: gone"), 0, "ended by error"),
        (replace(BEATING, paused=WHEN, failures=3), 0, "paused"),
        (replace(BEATING, lost=WHEN, paused=WHEN), 0, "server lost"),
        (BEATING.after(WHEN, "no images"), 0, "failing"),
        (BEATING.after(WHEN, "no images").after(WHEN), 0, "served"),
        (BEATING.after(WHEN, "no images"), 1, "dead"),
        (BEATING, HEARTBEAT_TIMEOUT / 3600, "served"),
        (BEATING, (HEARTBEAT_TIMEOUT + 1) / 3600, "dead"),
        (DEPLOYED, 14.9, "served"),
        (DEPLOYED, 15.1, "overdue"),
        (replace(DEPLOYED, run=WHEN), 15.1, "served"),
        (replace(DEPLOYED, every="6h"), 6.9, "served"),
        (replace(DEPLOYED, every="6h"), 7.1, "overdue"),
        (DEPLOYED.after(WHEN, "no images"), 3, "failing"),
    ],
)
def test_a_schedule_is_the_worst_that_is_known_of_it(
    schedule: ServedSchedule, hours: float, state: str
) -> None:
    found = served(schedule, NOON + timedelta(hours=hours))
    assert found.value == state
    assert found.is_well is (state in ("served", "ended"))


def test_failures_are_counted_until_a_run_succeeds() -> None:
    twice = BEATING.after("2026-03-01T02:00:00+00:00", "a").after("2026-03-02T02:00:00+00:00", "b")
    assert (twice.failures, twice.failing, twice.failure) == (2, "2026-03-01T02:00:00+00:00", "b")
    well = twice.after("2026-03-03T02:00:00+00:00")
    assert (well.failures, well.failing, well.succeeded) == (0, "", "2026-03-03T02:00:00+00:00")


def test_who_serves_goes_on_with_what_is_known_and_says_by_what_it_ends(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", create=True)
    with suppress(ZeroDivisionError), pulse(store, "6h", "UTC") as note:
        note(lambda known: replace(known.after(WHEN, "no images"), paused=WHEN))
        seen = read_schedule(store)
        assert (seen.failures, seen.paused, seen.ended) == (1, WHEN, "")
        raise ZeroDivisionError("one\nby zero")
    seen = read_schedule(store)
    assert seen.ended
    assert seen.error == "ZeroDivisionError: one by zero"
    with suppress(KeyboardInterrupt), pulse(store, "1h", "UTC"):
        seen = read_schedule(store)
        assert (seen.every, seen.failures, seen.paused, seen.ended, seen.error) == ("1h", 1, "", "", "")
        raise KeyboardInterrupt
    seen = read_schedule(store)
    assert (bool(seen.ended), seen.error) == (True, "")


def test_runs_of_a_deployment_say_how_they_went(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", create=True)

    def after(error: BaseException | None) -> ServedSchedule:
        with suppress(type(error or OSError())), deployed_run(store, "0 2 * * *", "UTC", "retrain/nightly"):
            during = read_schedule(store)
            assert (during.deployment, bool(during.run)) == (True, True)
            if error is not None:
                raise error
        found = read_schedule(store)
        assert found.run == ""
        return found

    assert [after(OSError("gone")).failures, after(OSError("gone")).failures] == [1, 2]
    assert after(LeaseHeldError("another works")).failures == 2
    # Three of them a day would pause the deployment.
    assert after(InterruptedRunError("stopped by SIGTERM; continue with ...")).failures == 2
    assert after(KeyboardInterrupt()).failures == 2
    assert after(None).failures == 0
    # One that was killed is still under way when the next begins.
    note_schedule(store, replace(DEPLOYED, run=WHEN))
    assert after(OSError("gone")).failures == 2
    with suppress(LeaseHeldError), deployed_run(store, "0 2 * * *", "UTC", "retrain/nightly"):
        with suppress(LeaseHeldError), deployed_run(store, "0 2 * * *", "UTC", "retrain/nightly"):
            raise LeaseHeldError("the run before still works")
        during = read_schedule(store)
        assert (bool(during.run), during.failures) == (True, 2), "that one was not killed"
        raise LeaseHeldError("another works")
    with pulse(store, "6h", "UTC"):
        seen = read_schedule(store)
        assert (seen.deployment, seen.run, seen.failures) == (False, "", 2)
        assert served(seen, datetime.now(UTC) + timedelta(minutes=5)).value == "dead"
    note_schedule(store, BEATING.beating(datetime.now(UTC).isoformat()))
    with deployed_run(store, "6h", "UTC", "retrain/other"):
        pass
    left = read_schedule(store)
    assert (left.process, left.succeeded) == ("host:7", ""), "who serves the store says how its runs go"


class MlflowException(Exception):
    """What the client raises where its server is gone."""


@dataclass
class Version:
    """A version of a registered model."""

    version: str
    source: str
    tags: dict[str, str]


@dataclass
class Registry:
    """The methods of MlflowClient that are called, by their names there."""

    models: dict[str, list[Version]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    gone: bool = False
    #: What the next request raises.
    broken: Exception | None = None

    def search_registered_models(self, filter_string: str) -> list[str]:
        if self.gone:
            raise MlflowException("no answer")
        error, self.broken = self.broken, None
        if error is not None:
            raise error
        return [name for name in self.models if filter_string == f"name = '{name}'"]

    def create_registered_model(self, name: str, description: str) -> None:
        assert name not in self.models, "MLflow refuses a name that is taken"
        self.models[name] = []

    def search_model_versions(self, filter_string: str) -> list[Version]:
        return self.models[filter_string.split("'")[1]]

    def create_model_version(self, name: str, source: str, tags: dict[str, str]) -> Version:
        self.models[name].append(Version(str(len(self.models[name]) + 1), source, dict(tags)))
        return self.models[name][-1]

    def set_model_version_tag(self, name: str, version: str, key: str, value: str) -> None:
        self.models[name][int(version) - 1].tags[key] = value

    def set_registered_model_alias(self, name: str, alias: str, version: str) -> None:
        self.aliases[alias] = version


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """MLflow's client, as far as it is needed, where it would be imported from."""
    made = Registry()
    client: Any = ModuleType("mlflow")

    def connected() -> Registry:
        if made.broken is not None:
            raise made.broken
        return made

    client.MlflowClient = connected
    errors: Any = ModuleType("mlflow.exceptions")
    errors.MlflowException = MlflowException
    monkeypatch.setitem(sys.modules, "mlflow", client)
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", errors)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5001")
    return made


def decided(kind: Kind, model: str, store: str = "/data/store") -> Notice:
    return Notice(kind, store, f"{model}: {kind}", {"model": model, "reason": "the gain"})


def test_the_champion_has_the_alias_and_each_model_one_version(registry: Registry) -> None:
    with told((), "digits") as tell:
        for kind, model in [
            (Kind.PROMOTED, "m0001"),
            (Kind.PROMOTED, "m0002"),
            (Kind.KEPT, "m0003"),
            (Kind.FAILED, ""),
            (Kind.ROLLED_BACK, "m0001"),
        ]:
            tell(decided(kind, model))
    versions = registry.models["digits"]
    assert [one.tags[MODEL].rpartition("/")[2] for one in versions] == ["m0001", "m0002", "m0003"]
    assert [one.tags[DECISION] for one in versions] == ["rolled back", "promoted", "kept"]
    assert versions[0].source == "topline://data/store/models/m0001"
    assert registry.aliases == {CHAMPION: "1"}


def test_a_bucket_is_the_source_itself(registry: Registry) -> None:
    mlflow_sender("digits")(decided(Kind.PROMOTED, "m0001", "s3://bucket/store"))
    assert registry.models["digits"][0].source == "s3://bucket/store/models/m0001"


def test_a_registry_that_is_gone_is_named_and_stops_nobody(registry: Registry) -> None:
    send = mlflow_sender("digits")
    registry.gone = True
    assert send(decided(Kind.PROMOTED, "m0001")) == ("MLflow's model digits",)
    registry.gone = False
    assert send(decided(Kind.PROMOTED, "m0001")) == ()


@pytest.mark.parametrize("error", [KeyError("tags"), RuntimeError("http://me:word@host"), RecursionError()])
def test_whatever_the_client_raises_costs_one_line_and_one_notice(
    registry: Registry, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    with told((), "digits") as tell:
        registry.broken = error
        tell(decided(Kind.PROMOTED, "m0001"))
        tell(decided(Kind.PROMOTED, "m0002"))
    (line,) = caplog.messages
    assert type(error).__name__ in line
    assert "m0001" in line
    assert "word" not in line
    assert [one.source for one in registry.models["digits"]] == ["topline://data/store/models/m0002"]


def test_an_address_that_the_client_does_not_take_is_refused_without_its_password(registry: Registry) -> None:
    registry.broken = ValueError("unsupported: nosuch://me:word@host")
    with (
        pytest.raises(ConfigError, match=r"MLFLOW_TRACKING_URI \(ValueError\)") as refused,
        told((), "digits"),
    ):
        pass
    assert "word" not in str(refused.value)


def test_what_is_missing_is_said_before_anything_is_served(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ConfigError, match="pip install mlflow-skinny"), told((), "digits"):
        pass
    with pytest.raises(ConfigError, match="without quotes"), told((), "dad's digits"):
        pass
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_URI"), told((), "digits"):
        pass
