"""TLS of a connection to the tracker: what a client brings, and what is wrong when it fails."""

from __future__ import annotations

import datetime
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunefarm.proto.errors import InvalidRequest

SYSTEM = "system"
"""In place of a file with a CA: those that this system trusts."""
LOOK_S = 2.0
_VERSION, _UTC_TIME, _LONG = 0xA0, 0x17, 0x80
"""Tags of DER, and from which on its second byte says how many bytes the length has."""
_NO_TLS = (
    "what listens at {} does not speak TLS; leave --tls-ca out if the tracker was started without "
    "--tls-cert"
)


@dataclass(frozen=True, slots=True)
class Tls:
    """What a client needs, as PEM: the farm's ``ca`` (empty: those that the system trusts) and,
    where the tracker asks for it, its own ``certificate`` and ``key``."""

    ca: str = ""
    certificate: str = ""
    key: str = field(default="", repr=False)

    @staticmethod
    def read(ca: str, certificate: str = "", key: str = "") -> Tls | None:
        """From files; None if none is named, which means a connection in the clear.

        InvalidRequest if a file cannot be read, or if one of certificate and key is missing.
        """
        if not (ca or certificate or key):
            return None
        if not ca or bool(certificate) != bool(key):
            raise InvalidRequest(
                "a connection with TLS takes --tls-ca FILE (or --tls-ca system) and, if the "
                "tracker asks for a certificate, both --tls-cert FILE and --tls-key FILE"
            )
        trusted = "" if ca == SYSTEM else read_pem(Path(ca), "CERTIFICATE")
        if not certificate:
            return Tls(trusted)
        return Tls(
            trusted,
            read_pem(Path(certificate), "CERTIFICATE"),
            read_pem(Path(key), "PRIVATE KEY"),
        )

    def credentials(self) -> Any:
        """What a gRPC channel is made with."""
        import grpc

        return grpc.ssl_channel_credentials(
            root_certificates=self.ca.encode() or None,
            private_key=self.key.encode() or None,
            certificate_chain=self.certificate.encode() or None,
        )


def read_pem(path: Path, kind: str) -> str:
    """The text of a PEM file that holds a ``kind``; InvalidRequest if it does not."""
    path = path.expanduser()
    try:
        text = path.read_text(encoding="ascii")
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError:
        text = ""
    if f"{kind}-----" not in text:
        raise InvalidRequest(f"{path} holds no {kind.lower()} in PEM; name a file that does")
    return text


def expires_at(pem: str) -> float:
    """When the first certificate of a PEM text ends, in seconds since the epoch.

    ValueError if there is none in it.
    """
    found = re.search(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", pem, re.DOTALL)
    if found is None:
        raise ValueError("the text holds no certificate")
    return der_expires_at(ssl.PEM_cert_to_DER_cert(found[0]))


def der_expires_at(der: bytes) -> float:
    """When a certificate in DER ends, in seconds since the epoch (X.509, RFC 5280, section 4.1);
    ValueError if it is none."""
    try:
        ((_, certificate),) = _elements(der)
        (_, signed), *_ = _elements(certificate)
        fields = [(tag, content) for tag, content in _elements(signed) if tag != _VERSION]
        (_, validity) = fields[3]  # after the serial number, the algorithm and the issuer
        _, (tag, last) = _elements(validity)
        form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
        moment = datetime.datetime.strptime(last.decode("ascii"), form)
    except (IndexError, ValueError) as error:
        raise ValueError("these bytes are no certificate") from error
    return moment.replace(tzinfo=datetime.UTC).timestamp()


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """The elements that stand one after the other: (tag, content)."""
    at = 0
    while at < len(der):
        tag, length = der[at], der[at + 1]
        at += 2
        if length >= _LONG:
            digits = length - _LONG
            length = int.from_bytes(der[at : at + digits])
            at += digits
        yield tag, der[at : at + length]
        at += length


def shown_by(address: str) -> float | None:
    """When the certificate that a tracker shows ends, in seconds since the epoch; None if none was
    seen in ``LOOK_S`` seconds."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # it is looked at, not trusted
    with (
        suppress(OSError, ValueError),
        socket.create_connection((host.strip("[]"), int(port)), LOOK_S) as plain,
        context.wrap_socket(plain) as wrapped,
    ):
        der = wrapped.getpeercert(binary_form=True)
        return der_expires_at(der) if der else None
    return None


def trouble(address: str, tls: Tls | None) -> str:
    """Why no connection to a listening ``address`` comes about; empty if TLS is not to blame.

    It tries by itself, as gRPC tells all of this as one code.
    """
    host, _, port = address.rpartition(":")
    place = (host.strip("[]"), int(port))
    with suppress(OSError), socket.create_connection(place, LOOK_S) as connection:
        if tls is None:
            return _trouble_in_the_clear(address, connection)
        return _trouble_with_tls(address, connection, place[0], tls)
    return ""


def _trouble_in_the_clear(address: str, connection: socket.socket) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        _is_welcome(context, connection, None)
    except ssl.SSLError:
        return ""
    return (
        f"the tracker at {address} speaks TLS only; give --tls-ca FILE with the CA that signed its "
        "certificate, or --tracker FILE as `tunefarm token create --file FILE` wrote it"
    )


def _trouble_with_tls(address: str, connection: socket.socket, host: str, tls: Tls) -> str:
    try:
        context = ssl.create_default_context(cadata=tls.ca or None)
    except ssl.SSLError:
        return "the CA given with --tls-ca is no certificate"
    context.set_alpn_protocols(["h2"])
    try:
        if _is_welcome(context, connection, host):
            return ""
    except ssl.SSLCertVerificationError as error:
        return _meaning(address, host, error)
    except ssl.SSLError:
        return _NO_TLS.format(address)
    return _trouble_with_own_certificate(address, tls)


def _trouble_with_own_certificate(address: str, tls: Tls) -> str:
    if tls.certificate:
        return (
            f"the tracker at {address} refuses the certificate given with --tls-cert: it has "
            "expired, or is not signed by the CA of the tracker's --tls-client-ca"
        )
    return (
        f"the tracker at {address} asks for a certificate; give --tls-cert FILE and --tls-key FILE "
        "of one signed by the CA of its --tls-client-ca"
    )


def _meaning(address: str, host: str, error: ssl.SSLCertVerificationError) -> str:
    match error.verify_code:  # X509_V_ERR_* of OpenSSL
        case 10:
            why = "has expired; renew it with `tunefarm certificates`"
        case 9:
            why = "is not valid yet; compare the clocks of the two machines"
        case 62 | 64:
            why = (
                f"is not made out to {host}; use a name that it has, or make one with "
                f"`tunefarm certificates --server {host}`"
            )
        case _:
            why = f"is not signed by the CA given with --tls-ca ({error.verify_message})"
    return f"the certificate of the tracker at {address} {why}"


def _is_welcome(context: ssl.SSLContext, connection: socket.socket, host: str | None) -> bool:
    """Shake hands; whether the server then speaks, as one that wants a certificate does not."""
    with context.wrap_socket(connection, server_hostname=host) as secure:
        with suppress(ssl.SSLError, ConnectionError):
            return secure.recv(1) != b""
        return False
