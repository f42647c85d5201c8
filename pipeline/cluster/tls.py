"""TLS files for a Dask cluster: a CA of the cluster's own, and a certificate and a key for each role.

A library for test certificates such as trustme would give every role a certificate that serves as both ends
of a connection, so that a client could pose as the scheduler; hence our own.
Dask admits anyone who shows a certificate of the CA, and compares no host names.  So the CA's key is never
written down: nobody can add a certificate later, and new ones shut out holders of old ones.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from topline.pipeline.errors import ConfigError

# A scheduler and a worker are called and call; a client only calls, so its certificate makes nobody a server.
ROLES = {
    "scheduler": (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH),
    "worker": (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH),
    "client": (ExtendedKeyUsageOID.CLIENT_AUTH,),
}
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
CONFIG_NAME = "dask.yaml"

# Clocks of other machines may be behind.
BACKDATED = dt.timedelta(minutes=5)


@dataclass(frozen=True)
class TlsFiles:
    """What was made: the folder, Dask's configuration that names its files, hosts, and the time of expiry."""

    folder: Path
    config: Path
    hosts: tuple[str, ...]
    expires: dt.datetime


def make_tls_files(folder: Path, hosts: Sequence[str] = (), days: int = 365) -> TlsFiles:
    """Write the CA's certificate, a certificate and a key for each role, and Dask's configuration of them.

    `hosts` are names and addresses of the machines, besides this one's loopback.  Only the owner can read the
    keys.  Raises `ConfigError` where `folder` holds anything already, or cannot be written.
    """
    folder = folder.expanduser().absolute()
    names = tuple(dict.fromkeys((*LOCAL_HOSTS, *hosts)))
    alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
    expires = dt.datetime.now(dt.UTC).replace(microsecond=0) - BACKDATED + dt.timedelta(days=days)
    ca = _Issuer(ec.generate_private_key(ec.SECP256R1()), expires - dt.timedelta(days=days), expires)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(
                f"{folder} is not empty, and certificates in use are not overwritten: name a new folder"
            )
        _write(folder / "ca.pem", ca.certificate("cluster CA", ca.key), 0o644)
        for role, uses in ROLES.items():
            key = ec.generate_private_key(ec.SECP256R1())
            private = key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            _write(folder / f"{role}.key", private, 0o600)
            certificate = ca.certificate(role, key, x509.ExtendedKeyUsage(uses), alternatives)
            _write(folder / f"{role}.pem", certificate, 0o644)
        config = folder / CONFIG_NAME
        _write(config, yaml.safe_dump(dask_config(folder), sort_keys=False).encode(), 0o644)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written ({error.strerror}): name another folder") from error
    return TlsFiles(folder, config, names, expires)


def dask_config(folder: Path) -> dict[str, object]:
    """Return Dask's configuration of the certificates in `folder`: TLS everywhere, and nothing without it."""
    tls: dict[str, object] = {"ca-file": str(folder / "ca.pem")}
    for role in ROLES:
        tls[role] = {"cert": str(folder / f"{role}.pem"), "key": str(folder / f"{role}.key")}
    return {"distributed": {"comm": {"require-encryption": True, "default-scheme": "tls", "tls": tls}}}


@dataclass(frozen=True)
class _Issuer:
    """The CA: its key, and from when to when its certificates hold."""

    key: ec.EllipticCurvePrivateKey
    begins: dt.datetime
    expires: dt.datetime

    def certificate(
        self, name: str, key: ec.EllipticCurvePrivateKey, *extensions: x509.ExtensionType
    ) -> bytes:
        """Return the certificate of `key` in PEM, for the CA itself where `key` is its own."""
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
    """Write a file that must not be there yet, with its permissions from the first byte."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:  # noqa: PTH123
        file.write(content)
