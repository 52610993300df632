"""Certificates for tests of TLS, made by the openssl program: an authority, and whom it signs for."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="no openssl is installed"
)


@dataclass(frozen=True)
class Signed:
    """A certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """A certificate authority in a folder; `cert` is what to trust."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.cert, self._key = folder / "ca.pem", folder / "ca.key"
        _openssl(
            "req",
            "-x509",
            *_new(self._key),
            "-days",
            "2",
            "-subj",
            "/CN=Covey test CA",
            "-out",
            str(self.cert),
        )

    def sign(self, name: str, *, days: int = 2) -> Signed:
        """A certificate for `name` that is good for 127.0.0.1 too; with -1 day it has expired."""
        cert, key, request = (self._folder / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
        extensions = self._folder / f"{name}.ext"
        extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        _openssl("req", *_new(key), "-subj", f"/CN={name}", "-out", str(request))
        signer = ["-CA", str(self.cert), "-CAkey", str(self._key), "-CAcreateserial"]
        _openssl(
            "x509",
            "-req",
            "-in",
            str(request),
            *signer,
            "-days",
            str(days),
            "-extfile",
            str(extensions),
            "-out",
            str(cert),
        )
        return Signed(cert, key)


def _new(key: Path) -> list[str]:
    return ["-newkey", "rsa:2048", "-nodes", "-keyout", str(key)]


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)
