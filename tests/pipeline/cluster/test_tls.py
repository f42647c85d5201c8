"""TLS for Dask: who gets in, judged by Dask's own contexts and by OpenSSL's handshake."""

from __future__ import annotations

import datetime as dt
import gc
import os
import re
import socketserver
import ssl
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dask
import pytest
import yaml
from cryptography import x509
from distributed import Client, LocalCluster
from distributed.security import Security

from topline.pipeline.cluster import open_cluster
from topline.pipeline.cluster.tls import expired, handshake_problem, make_tls_files
from topline.pipeline.errors import ClusterError, ConfigError
from topline.pipeline.options.train import ClusterConfig


def settings(config: Path) -> dict[str, Any]:
    """What Dask reads from the file, in the flat form that `dask.config.set` merges."""
    return dict(flat(yaml.safe_load(config.read_text())))


def flat(part: Mapping[str, Any], head: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in part.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{head}{name}.")
        else:
            yield head + name, value


@pytest.fixture(scope="module", autouse=True)
def _few_objects_to_collect() -> None:
    """What was there before is not gone through after every test."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _collected_between_tests(_few_objects_to_collect: None) -> Iterator[None]:
    """A client that was refused, and is collected in the thread of one that starts, stops that one."""
    gc.disable()
    yield
    gc.enable()
    gc.collect()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("tls") / "ours"
    return settings(make_tls_files(folder, ["scheduler.example"]).config)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return settings(make_tls_files(tmp_path_factory.mktemp("tls") / "theirs").config)


def context(config: dict[str, Any], kind: str, role: str) -> ssl.SSLContext:
    with dask.config.set(config):
        security = Security()
    args = security.get_listen_args(role) if kind == "listen" else security.get_connection_args(role)
    found = args["ssl_context"]
    assert isinstance(found, ssl.SSLContext)
    return found


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Carry a handshake and a byte from one to the other; `ssl.SSLError` where a side refuses."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    listening = server.wrap_bio(to_server, to_client, server_side=True)
    calling = client.wrap_bio(to_client, to_server)
    done = {listening: False, calling: False}
    for _ in range(10):
        for side in done:
            try:
                side.do_handshake()
                done[side] = True
            except ssl.SSLWantReadError:
                continue
    assert all(done.values())
    listening.write(b"!")
    assert calling.read(1) == b"!"


@pytest.mark.slow
@pytest.mark.parametrize("server", ["scheduler", "worker"])
@pytest.mark.parametrize("client", ["scheduler", "worker", "client"])
def test_every_role_reaches_scheduler_and_workers(made: dict[str, Any], server: str, client: str) -> None:
    shake_hands(context(made, "listen", server), context(made, "connect", client))


def test_a_client_cannot_pose_as_the_scheduler(made: dict[str, Any]) -> None:
    posing = context(
        {
            **made,
            "distributed.comm.tls.scheduler.cert": made["distributed.comm.tls.client.cert"],
            "distributed.comm.tls.scheduler.key": made["distributed.comm.tls.client.key"],
        },
        "listen",
        "scheduler",
    )
    with pytest.raises(ssl.SSLError, match=r"unsuitable certificate purpose|unsupported certificate"):
        shake_hands(posing, context(made, "connect", "worker"))


def test_who_has_no_certificate_of_the_same_ca_is_refused(
    made: dict[str, Any], others: dict[str, Any]
) -> None:
    scheduler = context(made, "listen", "scheduler")
    with pytest.raises(ssl.SSLError, match=r"(?i)verify failed|unknown ca"):
        shake_hands(scheduler, context(others, "connect", "client"))
    bare = ssl.create_default_context(cafile=made["distributed.comm.tls.ca-file"])
    bare.check_hostname = False
    with pytest.raises(ssl.SSLError, match="peer did not return a certificate"):
        shake_hands(scheduler, bare)


def test_keys_are_the_owners_alone_and_the_ca_has_none(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = make_tls_files(tmp_path / "certs").folder
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    keys = {path for path in folder.iterdir() if b"PRIVATE KEY" in path.read_bytes()}
    assert {path.name for path in keys} == {"scheduler.key", "worker.key", "client.key"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}


def test_certificates_hold_for_their_hosts_as_long_as_asked(tmp_path: Path) -> None:
    made = make_tls_files(tmp_path / "certs", ["scheduler.example", "10.0.0.7"], days=30)
    left = made.expires - dt.datetime.now(dt.UTC)
    assert dt.timedelta(days=29) < left <= dt.timedelta(days=30)
    ca = x509.load_pem_x509_certificate((made.folder / "ca.pem").read_bytes())
    for role in ("scheduler", "worker", "client"):
        found = x509.load_pem_x509_certificate((made.folder / f"{role}.pem").read_bytes())
        found.verify_directly_issued_by(ca)
        assert found.not_valid_after_utc == made.expires
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == ["localhost", "scheduler.example"]
        addresses = names.get_values_for_type(x509.IPAddress)
        assert [str(address) for address in addresses] == ["127.0.0.1", "::1", "10.0.0.7"]


def test_certificates_in_use_are_not_overwritten(tmp_path: Path) -> None:
    folder = make_tls_files(tmp_path / "certs").folder
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ConfigError, match="not empty"):
        make_tls_files(folder)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_host_that_is_no_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'bücher' is not the name of a machine"):
        make_tls_files(tmp_path / "certs", ["bücher"])
    assert not (tmp_path / "certs").exists()


@pytest.fixture(scope="module")
def scheduler(made: dict[str, Any]) -> Iterator[str]:
    """Address of a scheduler over TLS with one worker, both threads of this process."""
    with (
        dask.config.set(made),
        LocalCluster(
            n_workers=1,
            processes=False,
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
        ) as cluster,
    ):
        address = cluster.scheduler_address
        with dask.config.set(NOTHING):
            yield address


NOTHING: dict[str, Any] = {
    "distributed.comm.require-encryption": None,
    "distributed.comm.default-scheme": "tcp",
    "distributed.comm.tls.ca-file": None,
    **{
        f"distributed.comm.tls.{role}.{kind}": None
        for role in ("scheduler", "worker", "client")
        for kind in ("cert", "key")
    },
}


def test_the_certificate_opens_the_cluster(scheduler: str, made: dict[str, Any]) -> None:
    assert scheduler.startswith("tls://127.0.0.1:")
    with dask.config.set(made), open_cluster(ClusterConfig(scheduler=scheduler, worker_wait=120)) as client:
        assert client.submit(sum, [1, 2]).result(timeout=120) == 3


def test_dasks_own_client_does_not_get_in_without(scheduler: str, others: dict[str, Any]) -> None:
    plain = re.sub("^tls", "tcp", scheduler)
    for config, address in ((NOTHING, scheduler), (NOTHING, plain), (others, scheduler)):
        with dask.config.set(config), pytest.raises((OSError, TypeError)):
            Client(address, timeout=3, set_as_default=False)


@pytest.mark.parametrize(
    ("config", "scheme", "sentence"),
    [
        ("none", "tls", "asks for a certificate and Dask has none here: DASK_CONFIG has to name"),
        ("others", "tls", "has a certificate of another CA: DASK_CONFIG has to name"),
        ("lost", "tls", "a certificate of Dask's configuration cannot be used"),
        ("made", "tcp", "asks for encryption: use tls://"),
        ("none", "tcp", "speaks TLS: use tls:// instead of tcp://"),
    ],
)
@pytest.mark.sampled(2)
def test_refusals_are_sentences_that_say_what_to_do(
    scheduler: str, made: dict[str, Any], others: dict[str, Any], config: str, scheme: str, sentence: str
) -> None:
    lost = {name: f"/lost{value}" if ".tls." in name else value for name, value in made.items()}
    chosen = {"none": NOTHING, "others": others, "lost": lost, "made": made}[config]
    address = re.sub("^tls", scheme, scheduler)
    with (
        dask.config.set(chosen),
        pytest.raises(ClusterError, match=re.escape(sentence)),
        open_cluster(ClusterConfig(scheduler=address, worker_wait=3.0)),
    ):
        pass


@pytest.mark.parametrize(("days", "warned"), [(31, False), (29, True), (2, True)])
def test_an_expiry_is_warned_of_for_a_month(
    days: int, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = settings(make_tls_files(tmp_path / "certs", days=days).config)
    with (
        dask.config.set(made),
        pytest.raises(ClusterError, match="connection refused: nothing listens there"),
        open_cluster(ClusterConfig(scheduler="tls://127.0.0.1:9", worker_wait=0.3)),
    ):
        pass
    assert (f"expire in {days - 1} days" in caplog.text) is warned


@contextmanager
def listening(context: ssl.SSLContext | None) -> Iterator[str]:
    """Address of a server of the standard library that says a word to everybody, over TLS with a context."""

    class Answer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                spoken = self.request if context is None else context.wrap_socket(self.request, True)
                with spoken:
                    spoken.sendall(b"hello, who is it?")
                    spoken.recv(1)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads, block_on_close = True, False

    with Server(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"tls://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def problem(address: str, config: dict[str, Any]) -> str:
    with dask.config.set(config):
        found = expired() or handshake_problem(address, 60.0)
    return "" if found is None else ": ".join(found)


def test_handshakes_are_told_apart(made: dict[str, Any], others: dict[str, Any], tmp_path: Path) -> None:
    old = settings(make_tls_files(tmp_path / "old", days=0).config)
    with listening(context(made, "listen", "scheduler")) as address:
        assert problem(address, made) == ""
        assert "has a certificate of another CA" in problem(address, others)
        assert "cannot be reached with certificates that expired on" in problem(address, old)
        assert "speaks TLS: use tls://" in problem(address.replace("tls", "tcp"), NOTHING)
    with listening(context(old, "listen", "scheduler")) as address:
        assert "has a certificate that expired on" in problem(address, made)
    before = context(made, "listen", "scheduler")
    before.maximum_version = ssl.TLSVersion.TLSv1_2
    with listening(before) as address:
        assert problem(address, made) == ""
        refusal = "refuses the certificate of Dask's configuration here, or asks for one"
        assert refusal in problem(address, others)
        assert refusal in problem(
            address, {"distributed.comm.tls.ca-file": made["distributed.comm.tls.ca-file"]}
        )
        assert "speaks TLS: use tls://" in problem(address.replace("tls", "tcp"), NOTHING)
    with listening(None) as address:
        assert "speaks no TLS: use tcp://" in problem(address, made)
        assert problem(address.replace("tls", "tcp"), NOTHING) == ""


def test_an_own_cluster_speaks_tls_where_dask_is_told_to(made: dict[str, Any]) -> None:
    with dask.config.set(made), open_cluster(ClusterConfig(workers=1), data_bytes=0) as client:
        assert client.scheduler_info()["address"].startswith("tls://127.0.0.1:")
