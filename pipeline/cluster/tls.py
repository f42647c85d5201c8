"""Certificates for a Dask cluster over TLS: a CA of the cluster's own, and one key for each role.

Dask admits whoever shows a certificate of the CA, and compares no host names.  So the CA's key is never
written down: nobody can add a certificate later, and new ones shut out whoever holds an old one.
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
    """What was made: the folder, Dask's configuration that names its files, and how long they last."""

    folder: Path
    config: Path
    hosts: tuple[str, ...]
    expires: dt.datetime


@dataclass(frozen=True)
class _Authority:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def make_tls_files(folder: Path, hosts: Sequence[str] = (), days: int = 365) -> TlsFiles:
    """Write the CA's certificate, a certificate and a key for each role, and Dask's configuration of them.

    `hosts` are names and addresses of the machines, besides this one's loopback.  Only the owner can read the
    keys.  Raises `ConfigError` where `folder` holds anything already, or cannot be written.
    """
    folder = folder.expanduser().absolute()
    names = tuple(dict.fromkeys((*LOCAL_HOSTS, *hosts)))
    alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
    begins = dt.datetime.now(dt.UTC).replace(microsecond=0) - BACKDATED
    expires = begins + dt.timedelta(days=days)
    authority = _authority(begins, expires)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(
                f"{folder} is not empty, and certificates in use are not overwritten: name a new folder"
            )
        _write(folder / "ca.pem", _pem(authority.certificate), 0o644)
        for role in ROLES:
            key = ec.generate_private_key(ec.SECP256R1())
            certificate = _issue(authority, role, key, alternatives, begins, expires)
            _write(folder / f"{role}.key", _key_pem(key), 0o600)
            _write(folder / f"{role}.pem", _pem(certificate), 0o644)
        config = folder / CONFIG_NAME
        _write(config, yaml.safe_dump(dask_config(folder), sort_keys=False).encode(), 0o644)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written ({error.strerror}): name another folder") from error
    return TlsFiles(folder, config, names, expires)


def dask_config(folder: Path) -> dict[str, object]:
    """Give Dask's configuration of the certificates in `folder`: TLS everywhere, and nothing without it."""
    tls: dict[str, object] = {"ca-file": str(folder / "ca.pem")}
    for role in ROLES:
        tls[role] = {"cert": str(folder / f"{role}.pem"), "key": str(folder / f"{role}.key")}
    return {"distributed": {"comm": {"require-encryption": True, "default-scheme": "tls", "tls": tls}}}


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host)) if _is_address(host) else x509.DNSName(host)
    except ValueError as error:
        raise ConfigError(f"--host {host!r} is no name of a machine: use ASCII names or addresses") from error


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _authority(begins: dt.datetime, expires: dt.datetime) -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "topline cluster CA")])
    certificate = (
        _builder(name, name, key, begins, expires)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _Authority(key, certificate)


def _issue(
    authority: _Authority,
    role: str,
    key: ec.EllipticCurvePrivateKey,
    alternatives: x509.SubjectAlternativeName,
    begins: dt.datetime,
    expires: dt.datetime,
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"topline {role}")])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    return (
        _builder(name, authority.certificate.subject, key, begins, expires)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(ROLES[role]), critical=False)
        .add_extension(alternatives, critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority.key, hashes.SHA256())
    )


def _builder(
    name: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    begins: dt.datetime,
    expires: dt.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(expires)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write a file that must not be there yet, with its permissions from the first byte."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:  # noqa: PTH123
        file.write(content)
