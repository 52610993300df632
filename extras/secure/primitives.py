"""The cryptographic primitives of secure sums, each with one meaning.

Everything comes from the package `cryptography` and hashlib: X25519 (RFC 7748), Ed25519 (RFC 8032), HKDF-SHA256 (RFC 5869),
ChaCha20 and ChaCha20-Poly1305 (RFC 8439), BLAKE2b-256 (RFC 7693). Hashes and derived keys begin with a label, and no label
serves two purposes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from covey.shared.errors import UserError, install

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
    from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError:
    raise UserError(f"secure sums need the package cryptography: {install('secure')}") from None

LABEL = b"covey/secure/1/"
HASH_BYTES = 32
KEY_BYTES = 32  # of every key, public and secret
LENGTH_BYTES = 8  # before each part of what is hashed
NUMBER_BYTES = 8

_NONCE = bytes(12)  # each key seals one cell
_START = bytes(16)  # counter and nonce of a key stream: each key makes one

Token = Callable[[int], bytes]  # that many random bytes
Agreement = Callable[[bytes], bytes]


class BadKeyError(ValueError):
    """A public key that gives no secret: of small order, or of a wrong length."""


def number(value: int) -> bytes:
    """A number from 0 as a part of a hash: eight bytes, little-endian."""
    return value.to_bytes(NUMBER_BYTES, "little")


def framed(label: str, parts: tuple[bytes, ...]) -> bytes:
    """The label and the parts, each after its length: different parts never have the same bytes."""
    pieces = (LABEL + label.encode(), *parts)
    return b"".join(len(piece).to_bytes(LENGTH_BYTES, "little") + piece for piece in pieces)


def hashed(label: str, *parts: bytes) -> bytes:
    """H of extras/secure/protocol.md: 32 bytes."""
    return hashlib.blake2b(framed(label, parts), digest_size=HASH_BYTES).digest()


def derived(secret: bytes, salt: bytes, label: str, *parts: bytes) -> bytes:
    """KDF of extras/secure/protocol.md: a key of 32 bytes."""
    return HKDF(hashes.SHA256(), KEY_BYTES, salt, framed(label, parts)).derive(secret)


def public_key(secret: bytes) -> bytes:
    """The X25519 key of a secret of 32 bytes."""
    return x25519.X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def agreement(secret: bytes) -> Agreement:
    """What a secret of 32 bytes shares with X25519 keys: a function from their 32 bytes to those of the shared secret.

    The function raises BadKeyError for a key that shares none.
    """
    own = x25519.X25519PrivateKey.from_private_bytes(secret)

    def agreed(public: bytes) -> bytes:
        try:
            return own.exchange(x25519.X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            raise BadKeyError(str(error)) from None

    return agreed


def signing_key(secret: bytes) -> bytes:
    """The Ed25519 key of a secret of 32 bytes."""
    return ed25519.Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def signature(secret: bytes, message: bytes) -> bytes:
    """The Ed25519 signature of a message: 64 bytes."""
    return ed25519.Ed25519PrivateKey.from_private_bytes(secret).sign(message)


def is_signed(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the holder of a key signed this message."""
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def sealed(key: bytes, content: bytes, about: bytes) -> bytes:
    """A content that a holder of the key alone can read, bound to what it is about."""
    return ChaCha20Poly1305(key).encrypt(_NONCE, content, about)


def unsealed(key: bytes, cell: bytes, about: bytes) -> bytes | None:
    """The content of a cell, or None if the key or `about` differs, or the cell is damaged."""
    try:
        return ChaCha20Poly1305(key).decrypt(_NONCE, cell, about)
    except (InvalidTag, ValueError):
        return None


def stream_of(key: bytes) -> CipherContext:
    """The key stream of ChaCha20: `update` with zeros gives its next bytes. A key has one stream."""
    return Cipher(algorithms.ChaCha20(key, _START), mode=None).encryptor()
