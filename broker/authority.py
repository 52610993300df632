"""A certificate authority of one's own, and the certificate that a broker shows.

Keys are EC on P-256: small, and quick on a device. Clients compare the host that they dial with the names and addresses
in the certificate (subjectAltName, RFC 6125), so these must be the ones that devices use.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True)
class Signed:
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """Made anew, good for `days`. `own.certificate` is what clients trust; whoever has `own.key` can pass for any broker."""

    def __init__(self, name: str, days: int) -> None:
        self._until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = self._about(self._name, self._key.public_key()).add_extension(usage, critical=True)
        self.own = self._signed(builder.add_extension(x509.BasicConstraints(True, 0), critical=True), self._key)

    def sign(self, hosts: Sequence[str]) -> Signed:
        """A certificate for a server at these names and addresses, and a new key for it."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
        builder = (
            self._about(name, key.public_key())
            .add_extension(x509.SubjectAlternativeName([_general(host) for host in hosts]), critical=False)
            .add_extension(x509.BasicConstraints(False, None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        )
        return self._signed(builder, key)

    def _about(self, name: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            # a device without a clock of its own may be behind when it boots
            .not_valid_before(datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1))
            .not_valid_after(self._until)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(identifier, critical=False)
        )

    def _signed(self, builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> Signed:
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        made = builder.sign(self._key, hashes.SHA256())
        return Signed(made.public_bytes(serialization.Encoding.PEM), secret)


def _general(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    return x509.DNSName(host)
