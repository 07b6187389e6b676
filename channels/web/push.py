"""Web Push: notifications in the browsers of people who have no window open (RFC 8030, 8291, 8292).

The browsers of a person are one note of the channel's state, which is changed by compare-and-set: the limit holds over
all gateways. A browser belongs to the login that it was added with, and gets nothing once that has ended. Its endpoint
is a text of the browser: only public addresses are called, without redirects, and no response is read.

Encryption takes thirty lines over `cryptography`: the package that others use for it, http_ece, has no wheel, and locks
take wheels only.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
import os
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import structlog
from cachetools import LRUCache

from gateway.errors import UserError, exponential_delay
from gateway.net.public_http import NOT_PUBLIC, FetchFailed, PublicHttpClient

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    from gateway.store.records import SqlChannelState

log = structlog.get_logger(__name__)

MOST_BROWSERS = 10  # of one person
LONGEST_ENDPOINT = 1_000  # characters
LONGEST_NAME = 60
FRESH = timedelta(hours=4)  # an answer that is older is not announced
_SECONDS = 6.0  # of one attempt at all browsers of a person
_AT_ONCE = 64  # connections to push services, of all people
_FIRST_DELAY, _LONGEST_DELAY = timedelta(seconds=30), timedelta(minutes=30)
_TOKEN_LIFE = timedelta(hours=12)  # RFC 8292 allows 24
_RECORD = 4_096  # bytes of the one record, RFC 8291
LONGEST_PAYLOAD = _RECORD - 86 - 17  # less the header, the tag and the padding's first byte
_MOST_PAUSED = 10_000
_NOTE = "push/"
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256


class BadSubscription(UserError):
    """The data that a browser sent are not a valid subscription."""


class TooManyBrowsers(UserError):
    """The person has as many browsers as they may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushBrowser:
    """A browser that shows notifications to a person. All but `login` and `key` are texts of the browser."""

    id: str  # of its endpoint
    endpoint: str
    p256dh: str
    auth: str
    name: str
    login: str  # digest of its login; "" = the owner at this machine
    key: str  # our public key that it subscribed with
    shows_text: bool  # title and first words are shown, too
    at: str  # when it was added, ISO


@dataclass(frozen=True, slots=True, kw_only=True)
class PushNotice:
    """The content of a notification. Browsers that `shows_text` get `title` and `text`, the others `line`."""

    turn: str  # names the notification: a later one of the same turn replaces it
    conversation: str
    at: datetime  # when the answer was delivered
    line: str  # says that there is an answer, and nothing else
    title: str = ""
    text: str = ""

    def payload(self, *, shows_text: bool) -> bytes:
        """Return the JSON that the page's worker reads, at most `LONGEST_PAYLOAD` bytes."""
        facts = {"tag": self.turn, "conversation": self.conversation, "title": "Parlour", "body": self.line}
        if shows_text and self.text:
            facts |= {"title": self.title[:100] or "Parlour", "body": self.text[:160]}
        return json.dumps(facts, ensure_ascii=False).encode()


class PushKey:
    """The key pair of an installation (VAPID, RFC 8292), derived from its secret."""

    def __init__(self, secret: str) -> None:
        """Derive it; imports a large library, so call it in a thread."""
        from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, derive_private_key

        digest = hashlib.sha512(b"parlour push key\0" + secret.encode()).digest()
        self._private = derive_private_key(int.from_bytes(digest, "big") % (_ORDER - 1) + 1, SECP256R1())
        self.public = _encode(_point(self._private))

    def authorization(self, endpoint: str, contact: str, *, now: float) -> str:
        """Return the header that proves to the push service of *endpoint* who sends; *contact* is an address or ""."""
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
        from cryptography.hazmat.primitives.hashes import SHA256

        parts = urlsplit(endpoint)
        claims: dict[str, Any] = {"aud": f"{parts.scheme}://{parts.netloc}"}
        claims["exp"] = int(now + _TOKEN_LIFE.total_seconds())
        claims |= {"sub": contact} if contact else {}
        signed = ".".join(_encode(json.dumps(each).encode()) for each in ({"typ": "JWT", "alg": "ES256"}, claims))
        r, s = decode_dss_signature(self._private.sign(signed.encode(), ECDSA(SHA256())))
        signature = _encode(r.to_bytes(32, "big") + s.to_bytes(32, "big"))
        return f"vapid t={signed}.{signature}, k={self.public}"


def encrypt(
    payload: bytes, p256dh: bytes, auth: bytes, *, key: EllipticCurvePrivateKey | None = None, salt: bytes = b""
) -> bytes:
    """Return *payload* as one record of `aes128gcm` (RFC 8188, 8291). Raises ValueError for bad keys of a browser.

    *key* and *salt* are new ones, unless a test names them.
    """
    from cryptography.hazmat.primitives.asymmetric.ec import (
        ECDH,
        SECP256R1,
        EllipticCurvePublicKey,
        generate_private_key,
    )
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    if len(auth) != 16 or len(payload) > LONGEST_PAYLOAD:
        raise ValueError("a secret of 16 bytes and a payload of one record are needed")

    def derive(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
        return HKDF(algorithm=SHA256(), length=length, salt=salt, info=info).derive(secret)

    theirs = EllipticCurvePublicKey.from_encoded_point(SECP256R1(), p256dh)
    key, salt = key or generate_private_key(SECP256R1()), salt or os.urandom(16)
    point = _point(key)
    shared = derive(key.exchange(ECDH(), theirs), auth, b"WebPush: info\0" + p256dh + point, 32)
    content_key = derive(shared, salt, b"Content-Encoding: aes128gcm\0", 16)
    nonce = derive(shared, salt, b"Content-Encoding: nonce\0", 12)
    header = salt + _RECORD.to_bytes(4, "big") + bytes([len(point)]) + point
    return header + AESGCM(content_key).encrypt(nonce, payload + b"\x02", None)


class PushNotifier:
    """The browsers of the people of one page, and sending to them."""

    def __init__(
        self,
        state: SqlChannelState,
        http: PublicHttpClient,
        *,
        secret: Callable[[], Awaitable[str]],
        contact: str,
        is_valid: Callable[[str, str], Awaitable[bool]],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """*secret* returns the secret of the key, or raises UserError. *contact* is the public address, or "".

        *is_valid* returns whether a login, by its digest, still is one of a person.
        """
        self._state = state
        self._http = http
        self._secret = secret
        self._contact = contact
        self._is_valid = is_valid
        self._now = now
        self._slots = asyncio.Semaphore(_AT_ONCE)
        # Browsers whose push service asked us to wait, or failed: until when, and how often in a row. By this gateway.
        self._paused: LRUCache[str, tuple[datetime, int]] = LRUCache(_MOST_PAUSED)

    async def key(self) -> PushKey:
        """Return our key. Raises UserError if there can be none here."""
        return await asyncio.to_thread(_key_of, await self._secret())

    async def browsers(self, who: str) -> Sequence[PushBrowser]:
        """Return the browsers of *who*, the one added last at the end. Raises StoreUnavailable."""
        return _decode_all(await self._state.load(_NOTE + who))

    async def add(self, who: str, facts: Mapping[str, Any], login: str) -> PushBrowser:
        """Add the browser that *facts* describe, or change it; return it.

        Raises BadSubscription, TooManyBrowsers, UserError without a key, and StoreUnavailable.
        """
        key = (await self.key()).public
        new = _parse(facts, login=login, key=key, at=self._now().isoformat())
        await asyncio.to_thread(_require_keys, new)
        try:
            self._http.check_url(new.endpoint)
        except FetchFailed as error:
            raise BadSubscription(str(error)) from None

        def change(browsers: list[PushBrowser]) -> list[PushBrowser]:
            if any(each.id == new.id for each in browsers):  # a page that is opened says it again, and nothing changes
                return [replace(new, at=each.at) if each.id == new.id else each for each in browsers]
            if len(browsers) >= MOST_BROWSERS:
                raise TooManyBrowsers(f"there are {MOST_BROWSERS} browsers already")
            return [*browsers, new]

        await self._change(who, change)
        return new

    async def remove(self, who: str, ids: Collection[str]) -> None:
        """Remove browsers of *who*. Raises StoreUnavailable."""
        await self._change(who, lambda browsers: [each for each in browsers if each.id not in ids])

    async def remove_logins(self, who: str, logins: Collection[str]) -> None:
        """Remove the browsers that *who* added with *logins*, by their digests. Raises StoreUnavailable."""
        await self._change(who, lambda browsers: [each for each in browsers if each.login not in logins])

    async def remove_all(self, people: Collection[str] | None) -> None:
        """Remove all browsers of *people*; `None` stands for all people. Raises StoreUnavailable."""
        for name in await self._state.all(_NOTE):
            if people is None or name.removeprefix(_NOTE) in people:
                await self._state.save(name, None)

    async def notify(
        self, who: str, notice: PushNotice, ids: Collection[str] | None = None
    ) -> tuple[Collection[str], timedelta]:
        """Announce *notice* to the browsers of *who*, or to those with *ids*, which an earlier attempt returned.

        Return those that have to be tried again, and after what time. Raises StoreUnavailable.
        """
        remaining = FRESH - (self._now() - notice.at)
        if remaining <= timedelta(0):
            return (), timedelta(0)
        try:
            key = await self.key()
        except UserError as error:
            log.warning("push.no_key", reason=str(error))
            return (), timedelta(0)
        found = [each for each in await self.browsers(who) if ids is None or each.id in ids]
        gone = {each.id for each in found if not await self._is_valid(who, each.login)}
        due = [each for each in found if each.id not in gone and each.key == key.public and not self._wait_of(each)]
        retry = {each.id for each in found if each.id not in gone and self._wait_of(each)}
        results = await asyncio.gather(*(self._send(each, notice, key, remaining) for each in due))
        for browser, result in zip(due, results, strict=True):
            if result is _GONE:
                gone.add(browser.id)
            elif result is not None:
                retry.add(browser.id)
        if gone:
            log.info("push.browsers_removed", browsers=len(gone))
            await self.remove(who, gone)
        delay = max([timedelta(seconds=1), *(self._wait_of(each) for each in found if each.id in retry)])
        return retry, min(delay, remaining)

    def _wait_of(self, browser: PushBrowser) -> timedelta:
        until, _ = self._paused.get(browser.id, (self._now(), 0))
        return max(until - self._now(), timedelta(0))

    async def _send(self, browser: PushBrowser, notice: PushNotice, key: PushKey, life: timedelta) -> timedelta | None:
        """Return None when done, `_GONE` if the subscription has ended, or the time until the next attempt."""
        payload = notice.payload(shows_text=browser.shows_text)
        try:
            body = await asyncio.to_thread(encrypt, payload, _decode(browser.p256dh), _decode(browser.auth))
            headers = {
                "TTL": str(int(life.total_seconds())),
                "Urgency": "normal",  # of "chat or calendar message", RFC 8030
                "Topic": notice.turn,  # of two for one turn, the service keeps the last
                "Content-Encoding": "aes128gcm",
                "Content-Type": "application/octet-stream",
                "Authorization": key.authorization(browser.endpoint, self._contact, now=time.time()),
            }
            async with asyncio.timeout(_SECONDS), self._slots:
                status, retry_after = await self._http.post_status(browser.endpoint, headers=headers, data=body)
        except FetchFailed as error:
            if str(error) == NOT_PUBLIC:
                log.warning("push.not_public", browser=browser.id)
                return _GONE
            return self._pause(browser, str(error))
        except TimeoutError:
            return self._pause(browser, "no response in time")
        if status in (404, 410):
            return _GONE
        if status == 429 or status >= 500:
            return self._pause(browser, f"status {status}", _seconds_of(retry_after, self._now()))
        self._paused.pop(browser.id, None)
        if not 200 <= status < 300:  # trying again would change nothing
            log.warning("push.refused", browser=browser.id, status=status, host=urlsplit(browser.endpoint).hostname)
        return None

    def _pause(self, browser: PushBrowser, reason: str, minimum: timedelta = timedelta(0)) -> timedelta:
        _, failures = self._paused.get(browser.id, (None, 0))
        delay = max(minimum, exponential_delay(failures + 1, _FIRST_DELAY, _LONGEST_DELAY))
        self._paused[browser.id] = (self._now() + delay, failures + 1)
        log.info("push.later", browser=browser.id, reason=reason, seconds=int(delay.total_seconds()))
        return delay

    async def _change(self, who: str, change: Callable[[list[PushBrowser]], list[PushBrowser]]) -> None:
        while True:
            before = await self._state.load(_NOTE + who)
            known = _decode_all(before)
            after = change(known)
            if after == known:
                return
            value = json.dumps([asdict(each) for each in after]) if after else None
            if await self._state.replace(_NOTE + who, before, value):
                return


_GONE = timedelta.max


@lru_cache(maxsize=4)
def _key_of(secret: str) -> PushKey:
    try:
        return PushKey(secret)
    except ImportError:
        raise UserError("notifications need the extra `push`: install the package cryptography") from None


def _parse(facts: Mapping[str, Any], *, login: str, key: str, at: str) -> PushBrowser:
    try:
        endpoint, name, keys, shows_text = facts["endpoint"], facts["name"], facts["keys"], facts["shows_text"]
        p256dh, auth = keys["p256dh"], keys["auth"]
    except (KeyError, TypeError):
        raise BadSubscription("a part of the subscription is missing") from None
    texts = (endpoint, name, p256dh, auth)
    if not all(isinstance(each, str) for each in texts) or not isinstance(shows_text, bool):
        raise BadSubscription("a part of the subscription has another type")
    if len(endpoint) > LONGEST_ENDPOINT or len(name) > LONGEST_NAME or len(p256dh) > 100 or len(auth) > 30:
        raise BadSubscription("a part of the subscription is too long")
    if not endpoint.startswith("https://") or not name.isprintable():
        raise BadSubscription("the endpoint is no https address, or the name is no text")
    return PushBrowser(
        id=_encode(hashlib.sha256(endpoint.encode()).digest()[:16]),
        endpoint=endpoint,
        p256dh=p256dh,
        auth=auth,
        name=name,
        login=login,
        key=key,
        shows_text=shows_text,
        at=at,
    )


def _require_keys(browser: PushBrowser) -> None:
    try:
        encrypt(b"", _decode(browser.p256dh), _decode(browser.auth))
    except (ValueError, binascii.Error):
        raise BadSubscription("the keys of the subscription are not valid") from None


def _decode_all(value: str | None) -> list[PushBrowser]:
    return [] if value is None else [PushBrowser(**each) for each in json.loads(value)]


def _seconds_of(retry_after: str, now: datetime) -> timedelta:
    """Return the time of a Retry-After, in seconds or as a date; at most `FRESH`, and zero for other texts."""
    if retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 10:
        return min(timedelta(seconds=int(retry_after)), FRESH)
    try:
        at = parsedate_to_datetime(retry_after)
    except (ValueError, IndexError):
        return timedelta(0)
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return min(max(at - now, timedelta(0)), FRESH)


def _point(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
