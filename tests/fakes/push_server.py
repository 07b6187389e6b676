"""A push service over TLS (RFC 8030) and the browsers that subscribe at it: what comes is checked and decrypted.

Decryption goes step by step through RFC 8291 with the standard library's HMAC, apart from what encrypts.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import json
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from gateway.net import public_http
from gateway.net.public_http import PublicHttpClient
from tests.fakes.loopback import serve_app
from tests.fakes.public_site import LoopbackResolver

HOST = "push.example"


def b64(data: bytes) -> str:
    """Encode as browsers do."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unb64(text: str) -> bytes:
    """Undo `b64`."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _hkdf(salt: bytes, secret: bytes, info: bytes, length: int) -> bytes:
    first = hmac.new(salt, secret, hashlib.sha256).digest()
    return hmac.new(first, info + b"\x01", hashlib.sha256).digest()[:length]


@dataclass
class SubscribedBrowser:
    """A browser's subscription, with the keys that never leave it."""

    endpoint: str
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    auth: bytes = b"0123456789abcdef"

    @property
    def point(self) -> bytes:
        """The public key."""
        return self.key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)

    def facts(self, *, shows_text: bool = False, name: str = "Firefox, Android") -> dict[str, Any]:
        """Return what the page sends."""
        keys = {"p256dh": b64(self.point), "auth": b64(self.auth)}
        return {"endpoint": self.endpoint, "keys": keys, "shows_text": shows_text, "name": name}

    def decrypt(self, body: bytes) -> bytes:
        """Return the payload of one aes128gcm record."""
        salt, size, length = body[:16], int.from_bytes(body[16:20], "big"), body[20]
        sender, sealed = body[21 : 21 + length], body[21 + length :]
        assert len(body) <= size == 4_096
        theirs = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), sender)
        shared = self.key.exchange(ec.ECDH(), theirs)
        secret = _hkdf(self.auth, shared, b"WebPush: info\0" + self.point + sender, 32)
        key = _hkdf(salt, secret, b"Content-Encoding: aes128gcm\0", 16)
        plain = AESGCM(key).decrypt(_hkdf(salt, secret, b"Content-Encoding: nonce\0", 12), sealed, None)
        assert plain[-1:] == b"\x02"
        return plain[:-1]


@dataclass
class PushServer:
    """The service: its browsers by path, what each was sent, and how the next requests are answered."""

    address: str = ""
    tls: ssl.SSLContext | None = None
    browsers: dict[str, SubscribedBrowser] = field(default_factory=dict)
    received: list[dict[str, Any]] = field(default_factory=list)  # payloads, as the browsers would see them
    headers: list[Mapping[str, str]] = field(default_factory=list)
    answers: list[web.Response] = field(default_factory=list)  # of the next requests; then 201
    requests: int = 0
    hangs: bool = False
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def subscribe(self, name: str = "one", *, host: str = HOST) -> SubscribedBrowser:
        """Return a new browser."""
        port = self.address.rpartition(":")[2]
        browser = self.browsers[f"/push/{name}"] = SubscribedBrowser(f"https://{host}:{port}/push/{name}")
        return browser

    async def serve(self, request: web.Request) -> web.Response:
        self.requests += 1
        body = await request.read()
        if self.hangs:
            await asyncio.Event().wait()
        if self.answers:
            return self.answers.pop(0)
        browser = self.browsers.get(request.path)
        if browser is None:
            return web.Response(status=404)
        assert request.method == "POST"
        assert request.headers["Content-Encoding"] == "aes128gcm"
        assert 0 <= int(request.headers["TTL"]) <= 2_419_200
        assert request.headers["Urgency"] in {"very-low", "low", "normal", "high"}
        assert len(request.headers.get("Topic", "")) <= 32
        verify_sender(request.headers["Authorization"], f"https://{request.headers['Host']}")
        self.headers.append(dict(request.headers))
        self.received.append(json.loads(browser.decrypt(body)))
        self.arrived.set()
        return web.Response(status=201, headers={"Location": "/message/1"})

    def client(self) -> PublicHttpClient:
        """Return a client that finds every name here, and trusts the certificate; its checks are the real ones."""
        port = int(self.address.rpartition(":")[2])
        return _TrustingClient(self.tls, ports=[port], resolver=LoopbackResolver)


def verify_sender(header: str, audience: str) -> None:
    """Check a VAPID header (RFC 8292)."""
    scheme, _, rest = header.partition(" ")
    fields = dict(each.strip().split("=", 1) for each in rest.split(","))
    signed, _, signature = fields["t"].rpartition(".")
    assert scheme == "vapid"
    raw = unb64(signature)
    assert len(raw) == 64
    dss = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
    key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), unb64(fields["k"]))
    key.verify(dss, signed.encode(), ec.ECDSA(SHA256()))
    head, claims = (json.loads(unb64(each)) for each in signed.split("."))
    assert head == {"typ": "JWT", "alg": "ES256"}
    assert claims["aud"] == audience
    assert time.time() < claims["exp"] <= time.time() + 86_400
    assert urlsplit(claims.get("sub", "https://a")).scheme in {"https", "mailto"}


class _TrustingClient(PublicHttpClient):
    def __init__(self, tls: ssl.SSLContext | None, **options: Any) -> None:
        super().__init__(**options)
        self._tls = tls

    def open_session(self, *, is_checked: bool, timeout: Any = None, **options: Any) -> aiohttp.ClientSession:
        """Open a session that trusts the test's certificate."""
        return super().open_session(is_checked=is_checked, timeout=timeout, ssl=self._tls, **options)


def _certificate(folder: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
    names = x509.SubjectAlternativeName([x509.DNSName(HOST), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
        .sign(key, SHA256())
    )
    file = folder / "push.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(private + made.public_bytes(Encoding.PEM))
    return file


@asynccontextmanager
async def push_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PushServer]:
    """Run the service until the block ends; loopback counts as public, for it alone is reached here."""
    file = await asyncio.to_thread(_certificate, folder)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(file)
    server = PushServer(tls=ssl.create_default_context(cafile=str(file)))
    monkeypatch.setattr(public_http, "is_public", lambda address: address == "127.0.0.1")
    async with serve_app(server.serve, ssl_context=serving) as address:
        server.address = address
        yield server
