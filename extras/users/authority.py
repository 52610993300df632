"""A private certificate authority, and the certificates that it signs for a broker.

Keys are EC on P-256: small, and fast on a device. Clients compare the host that they connect to with the names and
addresses in the certificate (subjectAltName, RFC 6125), so these must be the ones that devices use.

The authority is valid for years, because every device holds a copy of its certificate. The broker's own certificate is
valid for months and is renewed by the same authority, so that nothing changes on the devices.
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

# the clock of a device without a battery may be behind when it boots
CLOCK_SLACK = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Signed:
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """`own.certificate` is what clients trust. Anyone who obtains `own.key` can impersonate any broker."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def create(cls, name: str, days: int) -> Authority:
        """A new authority, valid for `days`."""
        key = ec.generate_private_key(ec.SECP256R1())
        return cls._of(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key, days)

    @classmethod
    def _of(cls, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> Authority:
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
        builder = _builder(subject, key.public_key(), subject, key.public_key(), _in_days(days))
        builder = builder.add_extension(usage, critical=True)
        builder = builder.add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def load(cls, certificate: bytes, key: bytes) -> Authority:
        """The authority of these PEM texts. Raises ValueError if they are malformed or do not belong together."""
        read = x509.load_pem_x509_certificate(certificate)
        secret = serialization.load_pem_private_key(key, password=None)
        if (
            not isinstance(secret, ec.EllipticCurvePrivateKey)
            or secret.public_key() != read.public_key()
        ):
            raise ValueError("the certificate and the key do not belong together")
        return cls(read, secret)

    @property
    def days(self) -> int:
        """For how many days it was made."""
        return (self.until - self._certificate.not_valid_before_utc - CLOCK_SLACK).days

    def is_old(self, now: datetime.datetime) -> bool:
        """Whether more than half of its time is over."""
        return self.until - now < datetime.timedelta(days=self.days) / 2

    def renewed(self) -> Authority:
        """The same name and key for as many days again: clients trust what it signs by the former certificate too, until that ends."""
        return self._of(self._certificate.subject, self._key, self.days)

    @property
    def own(self) -> Signed:
        """The authority's certificate and key."""
        return Signed(self._certificate.public_bytes(serialization.Encoding.PEM), _pem(self._key))

    @property
    def until(self) -> datetime.datetime:
        """When it expires, in UTC."""
        return expiry(self.own.certificate)

    def sign(self, hosts: Sequence[str], days: int) -> Signed:
        """A certificate and a new key for a server with these names and addresses.

        Args:
            hosts: names and IP addresses; the first one becomes the common name.
            days: how long the certificate is valid, but never longer than the authority.

        Raises:
            ValueError: a host that no certificate can name.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        until = min(_in_days(days), self.until)
        builder = (
            _builder(
                name, key.public_key(), self._certificate.subject, self._key.public_key(), until
            )
            .add_extension(names, critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(purpose, critical=False)
        )
        signed = builder.sign(self._key, hashes.SHA256())
        return Signed(signed.public_bytes(serialization.Encoding.PEM), _pem(key))


def expiry(certificate: bytes) -> datetime.datetime:
    """When a PEM certificate expires, in UTC. Raises ValueError if it is malformed."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def hosts_of(certificate: bytes) -> list[str]:
    """The names and addresses in a PEM certificate, in their order. Raises ValueError if it is malformed."""
    read = x509.load_pem_x509_certificate(certificate)
    names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def _in_days(days: int) -> datetime.datetime:
    """This number of days from now, or the last day that a certificate can name (RFC 5280, section 4.1.2.5)."""
    now = datetime.datetime.now(datetime.UTC)
    last = datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC)
    return now + datetime.timedelta(days=min(days, (last - now).days))


def _builder(
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePublicKey,
    until: datetime.datetime,
) -> x509.CertificateBuilder:
    """The parts that the certificates of authority and server share."""
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime.now(datetime.UTC) - CLOCK_SLACK)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(identifier, critical=False)
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _general_name(host: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    if not host.isascii():
        raise ValueError(f"certificates name hosts in ASCII; write {host} as {_ascii_form(host)}")
    return x509.DNSName(host)


def _ascii_form(host: str) -> str:
    """The name of an internationalised host in the DNS (RFC 5890, A-label)."""
    with contextlib.suppress(UnicodeError):
        return host.encode("idna").decode()
    return "xn--..."
