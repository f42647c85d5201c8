"""TLS files for a Dask cluster: a CA of the cluster's own, and a certificate and key for each role.

A library for test certificates such as trustme issues certificates valid for both ends of a connection, so
that a client could pose as the scheduler; hence our own.  Dask admits any certificate of the CA and compares
no host names, so the CA's key is never written: nobody can add a certificate, and new files shut out old
ones.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import logging
import os
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import dask.config
import yaml
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from distributed.security import Security

from topline.pipeline.errors import ConfigError

logger = logging.getLogger(__name__)

# Schedulers and workers are both servers and clients; a client's certificate makes nobody a server.
ROLES = {
    "scheduler": (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH),
    "worker": (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH),
    "client": (ExtendedKeyUsageOID.CLIENT_AUTH,),
}
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
CONFIG_NAME = "dask.yaml"

# Other machines' clocks may be slow.
BACKDATED = dt.timedelta(minutes=5)

#: Time before expiry from which a warning is logged.
WARNED_BEFORE = dt.timedelta(days=30)
_RENEW = "make new ones with `topline certs`, for the scheduler, the workers and topline"
# Entries of a client's configuration.
_OWN = ("ca-file", "client.cert")

# A local cluster's certificates live only in its processes' memory; no job takes longer.
TEMPORARY_DAYS = 365


@dataclass(frozen=True)
class TlsFiles:
    """The files made: folder, Dask's configuration that names them, hosts, and time of expiry."""

    folder: Path
    config: Path
    hosts: tuple[str, ...]
    expires: dt.datetime


def make_tls_files(folder: Path, hosts: Sequence[str] = (), days: int = 365) -> TlsFiles:
    """Write the CA's certificate, a certificate and key per role, and Dask's configuration of them.

    `hosts` are the machines' names and addresses, in addition to loopback.  Only the owner can read the keys.
    Raises `ConfigError` if `folder` is not empty or cannot be written.
    """
    folder = folder.expanduser().absolute()
    names = tuple(dict.fromkeys((*LOCAL_HOSTS, *hosts)))
    issued, expires = _issued(names, days)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(
                f"{folder} is not empty, and certificates in use are not overwritten: name a new folder"
            )
        for name, content in issued.items():
            _write(folder / name, content, 0o600 if name.endswith(".key") else 0o644)
        config = folder / CONFIG_NAME
        _write(config, yaml.safe_dump(dask_config(folder), sort_keys=False).encode(), 0o644)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written ({error.strerror}): name another folder") from error
    return TlsFiles(folder, config, names, expires)


def temporary_security() -> Security:
    """Return certificates of a CA that exists only in this process: nobody else can join, call or read."""
    issued = {name: content.decode() for name, content in _issued(LOCAL_HOSTS, TEMPORARY_DAYS)[0].items()}
    roles = {
        f"tls_{role}_{kind}": issued[f"{role}.{ending}"]
        for role in ROLES
        for kind, ending in (("cert", "pem"), ("key", "key"))
    }
    return Security(require_encryption=True, tls_ca_file=issued["ca.pem"], **roles)


def configured_expiry() -> dt.datetime | None:
    """Return when the first of Dask's configured client certificates expires, None without a readable one."""
    read = (certificate_at(dask.config.get(f"distributed.comm.tls.{name}")) for name in _OWN)
    return min((one.not_valid_after_utc for one in read if one is not None), default=None)


def warn_of_expiry() -> None:
    """Log a warning if those certificates expire within a month."""
    expires, now = configured_expiry(), dt.datetime.now(dt.UTC)
    if expires is not None and now < expires < now + WARNED_BEFORE:
        logger.warning(
            "the certificates of Dask's configuration expire in %d days, on %s: %s",
            (expires - now).days, f"{expires:%Y-%m-%d}", _RENEW,
        )  # fmt: skip


def expired() -> tuple[str, str] | None:
    """Return a message and remedy if the certificates of Dask's configuration have expired."""
    expires = configured_expiry()
    if expires is None or expires > dt.datetime.now(dt.UTC):
        return None
    return f"cannot be reached with certificates that expired on {expires:%Y-%m-%d}", _RENEW


def handshake_problem(address: str, seconds: float) -> tuple[str, str] | None:
    """Return why a TLS handshake fails, and the remedy if known; None if nothing is wrong with it.

    Raises `OSError` if nobody answers.
    """
    # Dask reads an address without a scheme as TCP.
    address = address if "://" in address else f"tcp://{address}"
    parts, ca = urlsplit(address), certificate_at(dask.config.get("distributed.comm.tls.ca-file"))
    speaks, shown = _certificate_shown(parts.hostname or "", parts.port or 0, seconds)
    if parts.scheme != "tls":
        return None if not speaks else ("speaks TLS", f"use tls:// instead of {parts.scheme}://")
    if not speaks:
        return "speaks no TLS", "use tcp://, or start it with the certificates of `topline certs`"
    if shown is None:
        return "refuses the certificate of Dask's configuration here, or asks for one", ""
    if shown.not_valid_after_utc < dt.datetime.now(dt.UTC):
        return f"has a certificate that expired on {shown.not_valid_after_utc:%Y-%m-%d}", _RENEW
    if ca is None or not _is_issued_by(shown, ca):
        return "has a certificate of another CA", ""
    return None


def _certificate_shown(host: str, port: int, seconds: float) -> tuple[bool, x509.Certificate | None]:
    """Return whether the server speaks TLS, and its certificate, whoever issued it.

    Before TLS 1.3 a server shows none to a client whose own it refuses.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The certificate is inspected, not trusted: nothing is sent.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    own = [dask.config.get(f"distributed.comm.tls.client.{part}", None) for part in ("cert", "key")]
    with suppress(OSError, TypeError):
        context.load_cert_chain(*own)
    with socket.create_connection((host, port), seconds) as plain:
        try:
            with context.wrap_socket(plain) as shaken:
                shown = shaken.getpeercert(binary_form=True)
        except ssl.SSLError as error:
            # Only a TLS server answers with an alert.
            return "ALERT" in str(error.reason), None
        except (ConnectionError, TimeoutError):
            return False, None
    return True, None if shown is None else x509.load_der_x509_certificate(shown)


def _is_issued_by(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def certificate_at(name: str | None) -> x509.Certificate | None:
    """Return the first certificate in a PEM file, or None."""
    try:
        return None if name is None else x509.load_pem_x509_certificate(Path(name).read_bytes())
    except (OSError, ValueError):
        return None


def _issued(names: Sequence[str], days: int) -> tuple[dict[str, bytes], dt.datetime]:
    """Return certificates and keys in PEM by file name, and their expiry."""
    alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
    expires = dt.datetime.now(dt.UTC).replace(microsecond=0) - BACKDATED + dt.timedelta(days=days)
    ca = _Issuer(ec.generate_private_key(ec.SECP256R1()), expires - dt.timedelta(days=days), expires)
    issued = {"ca.pem": ca.certificate("cluster CA", ca.key)}
    for role, uses in ROLES.items():
        key = ec.generate_private_key(ec.SECP256R1())
        issued[f"{role}.key"] = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        issued[f"{role}.pem"] = ca.certificate(role, key, x509.ExtendedKeyUsage(uses), alternatives)
    return issued, expires


def dask_config(folder: Path) -> dict[str, object]:
    """Return Dask's configuration for the certificates in `folder`: TLS everywhere, required."""
    tls: dict[str, object] = {"ca-file": str(folder / "ca.pem")}
    for role in ROLES:
        tls[role] = {"cert": str(folder / f"{role}.pem"), "key": str(folder / f"{role}.key")}
    return {"distributed": {"comm": {"require-encryption": True, "default-scheme": "tls", "tls": tls}}}


@dataclass(frozen=True)
class _Issuer:
    """The CA: its key and the validity period of its certificates."""

    key: ec.EllipticCurvePrivateKey
    begins: dt.datetime
    expires: dt.datetime

    def certificate(
        self, name: str, key: ec.EllipticCurvePrivateKey, *extensions: x509.ExtensionType
    ) -> bytes:
        """Return the certificate of `key` in PEM; the CA's own certificate if `key` is its key."""
        is_ca = key is self.key
        builder = (
            x509.CertificateBuilder()
            .subject_name(_distinguished(name))
            .issuer_name(_distinguished("cluster CA"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.begins)
            .not_valid_after(self.expires)
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
            .add_extension(_key_usage(signs_certificates=is_ca), critical=True)
        )
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        for extension in (identifier, *(() if is_ca else (issuer,)), *extensions):
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _distinguished(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"topline {name}")])


def _general_name(host: str) -> x509.GeneralName:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return _host_name(host)
    return x509.IPAddress(address)


def _host_name(host: str) -> x509.DNSName:
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise ConfigError(
            f"--host {host!r} is not the name of a machine: use ASCII names or addresses"
        ) from error


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign")
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        **dict.fromkeys((*others, "encipher_only", "decipher_only"), False),
    )


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write a new file, with its permissions set from the first byte."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:  # noqa: PTH123
        file.write(content)
