"""Certificates for tests of TLS: an authority, and whom it signs for, for days or for seconds."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY_S = 86_400.0


@dataclass(frozen=True)
class Signed:
    """A certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority in a folder; `cert` is what to trust."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.cert, self._key = folder / "ca.pem", ec.generate_private_key(ec.SECP256R1())
        self._name = _name("Covey test CA")
        built = self._builder(self._name, self._key, 2 * DAY_S)
        built = built.add_extension(x509.BasicConstraints(True, None), critical=True)
        self._write(built, self.cert)

    def sign(self, name: str, *, days: float = 2) -> Signed:
        """A certificate for `name` that is good for 127.0.0.1 too; with -1 day it has expired. A second one replaces the first."""
        signed = Signed(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        key = ec.generate_private_key(ec.SECP256R1())
        here: list[x509.GeneralName] = [x509.DNSName("localhost")]
        here.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        built = self._builder(_name(name), key, days * DAY_S)
        built = built.add_extension(x509.SubjectAlternativeName(here), critical=False)
        text = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        signed.key.write_bytes(text)
        signed.key.chmod(0o600)
        self._write(built, signed.cert)
        return signed

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, seconds: float
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=2))
            .not_valid_after(now + datetime.timedelta(seconds=seconds))
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(issuer, critical=False)
        )

    def _write(self, built: x509.CertificateBuilder, path: Path) -> None:
        signed = built.sign(self._key, hashes.SHA256())
        path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
