"""A farm's own certificates: a CA, one for the tracker, one for each machine of workers.

Needs the package ``cryptography`` (``pip install 'tunefarm[tls]'``), nothing else.
"""

from __future__ import annotations

import datetime
import importlib.util
import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunefarm.compiler.errors import TunefarmError
from tunefarm.proto.rendezvous import write_private

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

CA, SERVER = "ca", "server"
CA_YEARS = 10
ALWAYS = ("localhost", "127.0.0.1", "::1")
"""What the tracker's certificate is made out to besides its names."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SLACK = datetime.timedelta(hours=1)


def make_certificates(
    folder: Path, servers: Sequence[str], workers: Sequence[str], days: int
) -> list[Path]:
    """Write PEM files into a folder: ``ca``, ``server`` made out to the hosts ``servers``, and one
    of each name in ``workers``, each as ``NAME.pem`` and ``NAME.key`` (mode 0600).

    The folder's CA is used if it has one; other files are replaced, which renews them. Returns the
    certificates that it wrote. TunefarmError if ``cryptography`` is not installed, for a name that
    is none, and if the folder cannot be written.
    """
    _check(servers, workers)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = (folder / f"{CA}.key").exists()
        authority = _read_authority(folder) if known else _new_authority(folder)
        written = [] if known else [folder / f"{CA}.pem"]
        if servers:
            names = list(dict.fromkeys([*servers, *ALWAYS]))
            written.append(_issue(folder, authority, SERVER, servers[0], names, days))
        for worker in workers:
            written.append(_issue(folder, authority, worker, worker, (), days))
    except OSError as error:
        raise TunefarmError(f"cannot write certificates to {folder}: {error.strerror}") from error
    return written


def _check(servers: Sequence[str], workers: Sequence[str]) -> None:
    if importlib.util.find_spec("cryptography") is None:
        raise TunefarmError(
            "making certificates needs the package cryptography; pip install 'tunefarm[tls]'"
        )
    for name in (*servers, *workers):
        if not _is_address(name) and _NAME.fullmatch(name) is None:
            raise TunefarmError(f"{name!r} is no name of a host or worker; write for instance lab3")
    taken = [name for name in workers if name in (CA, SERVER)]
    if taken:
        raise TunefarmError(f"a worker cannot be named {taken[0]}; choose another name")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


Authority = tuple["x509.Certificate", "EllipticCurvePrivateKey"]


def _new_authority(folder: Path) -> Authority:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        _begun("tunefarm CA", _name("tunefarm CA"), key, now, 365 * CA_YEARS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(folder, CA, certificate, key)
    return certificate, key


def _read_authority(folder: Path) -> Authority:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        certificate = x509.load_pem_x509_certificate((folder / f"{CA}.pem").read_bytes())
        key = load_pem_private_key((folder / f"{CA}.key").read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise TunefarmError(f"{folder} holds a CA that cannot be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TunefarmError(f"{folder} holds a CA of another program; name another folder")
    return certificate, key


def _issue(
    folder: Path,
    authority: Authority,
    file: str,
    name: str,
    hosts: Sequence[str],
    days: int,
) -> Path:
    """A certificate for the tracker at ``hosts`` or, without any, for a worker."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID as Use

    certificate, signer = authority
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    names: list[x509.GeneralName] = [
        x509.IPAddress(ipaddress.ip_address(host)) if _is_address(host) else x509.DNSName(host)
        for host in hosts or (name,)
    ]
    use = Use.SERVER_AUTH if hosts else Use.CLIENT_AUTH
    made = (
        _begun(name, certificate.subject, key, now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .sign(signer, hashes.SHA256())
    )
    return _write(folder, file, made, key)


def _begun(
    name: str, issuer: x509.Name, key: EllipticCurvePrivateKey, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLACK)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _write(folder: Path, name: str, certificate: x509.Certificate, key: Any) -> Path:
    """The key first: a tracker that looks in between keeps to the pair that it has."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_private(folder / f"{name}.key", pem.decode())
    path = folder / f"{name}.pem"
    path.write_bytes(certificate.public_bytes(Encoding.PEM))
    return path
