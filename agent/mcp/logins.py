"""Logins of people at MCP servers: how each signs in, and the tokens, sealed in rows of the store.

A login belongs to the account that signed in, so that linking accounts moves none: a person has those of all their
accounts. Its row is replaced by compare-and-set. One gateway at a time refreshes it: it writes a lease into the row
first, and the row with the new tokens replaces the one with the old. A kill between leaves the old tokens.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from agent.mcp.client import CallLogin
from agent.mcp.oauth import GrantedTokens, LoginConfig, OAuthClient, OAuthFailed, sign_in_address
from gateway.durable_files import write_private
from gateway.errors import ParlourError, StoreUnavailable, UserError
from gateway.home import make_private
from gateway.ports.channel import CACHED_NOTES

if TYPE_CHECKING:
    from gateway.events import PlatformAccount
    from gateway.store.records import SqlChannelState

log = structlog.get_logger(__name__)

KEY_SETTING = "tools.login_key"
_KEY_FILE = "tools__login_key"  # in the folder of secrets
_KEY_DIGEST = f"{CACHED_NOTES}login_key"
_LOGIN, _ATTEMPT, _PENDING = "login/", "attempt/", "pending/"
ATTEMPT_LASTS = timedelta(minutes=10)
_MOST_ATTEMPTS = 5  # of an account at once
_MOST_TRIES = 5  # of a code
_EARLY = 30.0  # seconds before the end of a token at which it is refreshed
_LEASE = 45.0  # seconds; a request ends after 25
_POLL = 0.25  # seconds until the row is read again, while another gateway refreshes
_STORE_AGAIN = 1.0
_STORE_TRIES = 60
_CLOSE_WITHIN = 25.0  # seconds that a stop waits for a refresh under way, which would be lost


class LoginNeeded(ParlourError):
    """The person has not signed in to the server, or has to again."""


class LoginUnavailable(ParlourError):
    """The person has signed in, and the authorization server does not answer."""


class KeyMissing(UserError):
    """The key of the logins is not here, or is another one."""


class CallbackResult(StrEnum):
    """The result of a sign-in: a key of the catalogue."""

    DONE = "logins.page_done"
    UNKNOWN = "logins.page_unknown"  # no such attempt: used, expired, or never begun
    DENIED = "logins.page_denied"
    FAILED = "logins.page_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginServer:
    """A server that people sign in to."""

    name: str
    url: str
    config: LoginConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginSummary:
    """A login without its tokens."""

    server: str
    account: str  # its name
    at: datetime  # of the sign-in
    is_over: bool  # the person has to sign in again


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoginRow:
    """A row; its name has the server and the account."""

    at: str  # ISO 8601
    sealed: str  # `_SealedTokens`
    expires: float | None = None  # of the access token; seconds since 1970
    is_over: bool = False
    lease: str = ""  # different for each refresh
    leased_until: float = 0.0

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class _SealedTokens:
    """Tokens, and for which server and client they are."""

    url: str
    issuer: str
    client_id: str
    access: str = field(repr=False)
    refresh: str = field(repr=False)

    def is_of(self, server: LoginServer) -> bool:
        return [self.url, self.issuer, self.client_id] == _place(server)


class LoginVault:
    """Seals texts with a key that is in no row and no backup."""

    def __init__(self, state: SqlChannelState, folder: Path, key: str, *, is_shared: bool = False) -> None:
        """*folder* has the secrets of the home, *key* is the setting; "" = none. *is_shared* is the store's."""
        self._is_shared = is_shared
        self._state = state
        self._folder = folder
        self._key = key

    def check(self) -> None:
        """Raise KeyMissing if logins are stored that this key does not open. Asks no store."""
        stored = self._state.cached().get(_KEY_DIGEST)
        if stored is None or (self._key and stored == _digest(self._key)):
            return
        what = "is not set" if not self._key else "is not the one that they were sealed with"
        raise KeyMissing(
            f"people have signed in to services, and {KEY_SETTING} {what}: put back the file secrets/{_KEY_FILE}, the"
            " same for every gateway of this store, or run `parlour mcp reset-logins`: then everybody signs in again"
        )

    async def make_key(self) -> None:
        """Make the key of an installation that has none. Raises KeyMissing, and UserError where it cannot be written.

        Where several gateways share the store, each is to have it before: one that they lack would end their starts.
        """
        self.check()
        if self._is_shared and not self._key:
            raise KeyMissing(
                f"several gateways share this store: set {KEY_SETTING} on each of them first, to the same"
                " 32 or more random characters (`openssl rand -hex 24`), and start them again"
            )
        if self._state.cached().get(_KEY_DIGEST) is None:
            key = self._key or secrets.token_urlsafe(32)
            if not self._key:
                await asyncio.to_thread(_write_key, self._folder, key)
            await self._state.replace(_KEY_DIGEST, None, _digest(key))
            self._key = key
            self.check()

    async def forget_key(self) -> None:
        """Forget with which key logins were sealed."""
        await self._state.save(_KEY_DIGEST, None)

    def seal(self, text: str, about: str) -> str:
        """Return *text* sealed for the row *about*. Raises KeyMissing."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # 5 MB, which most gateways do without

        nonce = secrets.token_bytes(12)
        return base64.b64encode(nonce + AESGCM(self._secret()).encrypt(nonce, text.encode(), about.encode())).decode()

    def open(self, sealed: str, about: str) -> str | None:
        """Return the text of `seal`; None if it is not one of this key and row. Raises KeyMissing."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            data = base64.b64decode(sealed, validate=True)
            return AESGCM(self._secret()).decrypt(data[:12], data[12:], about.encode()).decode()
        except (InvalidTag, binascii.Error, ValueError):
            return None

    def _secret(self) -> bytes:
        self.check()
        if not self._key:
            raise KeyMissing(f"{KEY_SETTING} is not set; `parlour mcp login` makes it")
        return hashlib.sha256(b"parlour login key\0" + self._key.encode()).digest()


def _digest(key: str) -> str:
    return hashlib.sha256(b"parlour login key digest\0" + key.encode()).hexdigest()


def _write_key(folder: Path, key: str) -> None:
    try:
        make_private(folder)
        write_private(folder / _KEY_FILE, key + "\n")
    except OSError as error:
        raise UserError(
            f"the key of the logins cannot be written to {folder} ({error.strerror}); set {KEY_SETTING} yourself, to"
            " 32 or more random characters"
        ) from None


class PersonLogins:
    """Signs people in to servers, and has their tokens. Safe to share between turns and gateways."""

    def __init__(
        self,
        state: SqlChannelState,
        vault: LoginVault,
        client: OAuthClient,
        *,
        server: Callable[[str], LoginServer | None],
        accounts: Callable[[str], Sequence[str]],
        address: Callable[[], str],
        now: Callable[[], datetime],
    ) -> None:
        """*server* returns one by its name, *accounts* those of the person with an account, all by their names.

        *address* returns the address of this gateway's web server as browsers see it, without a slash at the end.
        """
        self.vault = vault
        self.client = client
        self._state = state
        self._server = server
        self._accounts = accounts
        self._address = address
        self._now = now
        self._refreshes: set[asyncio.Task[bool]] = set()

    def redirect(self, name: str) -> str:
        """Return the address to which the authorization server of the server *name* sends people back.

        Each has its own (RFC 9700, 4.4): one that is hostile could otherwise send people on to another, whose code
        would come back as its own, and get code and verifier.
        """
        return f"{self._address()}/oauth/callback/{name}"

    def document(self, name: str) -> str:
        """Return the address of this client's metadata, by which a server may know it without a registration."""
        return f"{self._address()}/oauth/client/{name}.json"

    async def close(self) -> None:
        """Wait until refreshes that have begun are stored, and tokens are revoked."""
        if self._refreshes:
            await asyncio.wait(self._refreshes, timeout=_CLOSE_WITHIN)

    # -- signing in --------------------------------------------------------------------------------

    async def begin(self, name: str, account: PlatformAccount, *, language: str) -> str:
        """Return the address at which the person with *account* signs in to the server *name*. Raises UserError."""
        server = self._require(name)
        await self.prune()
        # Those that were not finished go, the oldest first.
        mine = [
            (fields["expires"], row)
            for row, fields in (await self._rows(_ATTEMPT)).items()
            if fields["account"] == account.name
        ]
        for _, row in sorted(mine)[: max(0, len(mine) - _MOST_ATTEMPTS + 1)]:
            await self._state.save(row, None)
        state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(48)
        row = f"{_ATTEMPT}{_hash(state)}"
        fields = {
            "server": name,
            "place": _place(server),
            "account": account.name,
            "language": language,
            "expires": (self._now() + ATTEMPT_LASTS).timestamp(),
            "sealed": self.vault.seal(verifier, row),
        }
        await self._state.save(row, json.dumps(fields))
        return sign_in_address(server.config, redirect=self.redirect(name), state=state, verifier=verifier)

    async def take_callback(
        self, name: str, *, state: str, code: str, issuer: str | None, error: str
    ) -> tuple[CallbackResult, str, str, str]:
        """Take what the authorization server of the server *name* sends a browser back with, once; at any gateway.

        Return the result, the language of the person, the server and the code to type: the browser may be of another
        person, who was sent the link, so the tokens wait until the person of the link types the code.
        Raises StoreUnavailable and KeyMissing.
        """
        row = f"{_ATTEMPT}{_hash(state)}"
        text = await self._state.take(row)
        if text is None:
            return CallbackResult.UNKNOWN, "", "", ""
        fields = json.loads(text)
        language, server = fields["language"], self._server(name)
        verifier = self.vault.open(fields["sealed"], row)
        if fields["expires"] <= self._now().timestamp() or server is None or verifier is None:
            return CallbackResult.UNKNOWN, language, "", ""
        if fields["server"] != name or fields["place"] != _place(server):  # a code of another authorization server
            log.warning("login.wrong_server", server=name, begun_at=fields["server"])
            return CallbackResult.FAILED, language, name, ""
        config = server.config
        has_issuer = config.sends_issuer or issuer is not None
        if has_issuer and issuer != config.issuer:  # also where it answers with an error
            log.warning("login.wrong_issuer", server=server.name)
            return CallbackResult.FAILED, language, server.name, ""
        if error or not code:
            return CallbackResult.DENIED, language, server.name, ""
        try:
            tokens = await self.client.redeem(
                config, self._client_secret(server), code=code, verifier=verifier, redirect=self.redirect(name)
            )
        except OAuthFailed as failed:
            log.warning("login.failed", server=server.name, reason=str(failed))
            return CallbackResult.FAILED, language, server.name, ""
        confirmation = f"{secrets.randbelow(1_000_000):06}"
        await self._keep_pending(server, fields["account"], confirmation, tokens)
        return CallbackResult.DONE, language, server.name, confirmation

    async def _keep_pending(self, server: LoginServer, account: str, confirmation: str, tokens: GrantedTokens) -> None:
        row = f"{_PENDING}{server.name}/{account}"
        value = {"code": confirmation, "tokens": asdict(_sealed(server, tokens)), "expires": self._token_end(tokens)}
        fields = {
            "expires": (self._now() + ATTEMPT_LASTS).timestamp(),
            "tries": 0,
            "sealed": self.vault.seal(json.dumps(value), row),
        }
        await self._state.save(row, json.dumps(fields))

    async def finish(self, name: str, account: PlatformAccount, code: str) -> bool:
        """Store the login that waits for *code*; False if none does. Raises UserError."""
        server, row = self._require(name), f"{_PENDING}{name}/{account.name}"
        text = await self._state.load(row)
        if text is None:
            return False
        fields = json.loads(text)
        if fields["expires"] <= self._now().timestamp() or fields["tries"] >= _MOST_TRIES:
            await self._state.replace(row, text, None)
            return False
        counted = json.dumps({**fields, "tries": fields["tries"] + 1})
        opened = self.vault.open(fields["sealed"], row)
        if opened is None or not await self._state.replace(row, text, counted):
            return False
        value = json.loads(opened)
        tokens = _SealedTokens(**value["tokens"])
        if not hmac.compare_digest(value["code"].encode(), code.encode()) or not tokens.is_of(server):
            return False
        login = _login_name(name, account.name)
        stored = _LoginRow(
            at=self._now().isoformat(), sealed=self._seal_tokens(tokens, login), expires=value["expires"]
        )
        await self._state.save(login, stored.to_json())
        if await self._state.take(row) is None:  # the person was erased meanwhile
            await self._state.save(login, None)
            return False
        log.info("login.done", server=name, account=account.name)
        return True

    def _require(self, name: str) -> LoginServer:
        server = self._server(name)
        if server is None:
            raise UserError(f"nobody signs in to {name}")
        return server

    # -- tokens ------------------------------------------------------------------------------------

    async def find(self, name: str, account: str, *, except_token: str = "") -> CallLogin:
        """Return the login of the person with *account* at the server *name*.

        Its token is not *except_token*, which the server has refused. One gateway refreshes it if it ends soon. Raises
        LoginNeeded, LoginUnavailable, KeyMissing and StoreUnavailable.
        """
        server = self._server(name)
        if server is None:
            raise LoginNeeded(f"nobody can sign in to {name} any more")
        is_renewed = False
        while True:
            row, text = await self._newest(name, account)
            login = _LoginRow(**json.loads(text)) if text else None
            tokens = self._open_tokens(login.sealed, row) if login is not None else None
            if login is None or login.is_over or tokens is None or not tokens.is_of(server):
                raise LoginNeeded(f"the person has {'to sign in again' if login else 'not signed in'} to {name}")
            now = self._now().timestamp()
            is_valid = login.expires is None or login.expires - now > _EARLY
            if is_renewed or (is_valid and tokens.access != except_token):
                # Another sign-in may be another user of the server, to whom a session does not belong.
                return CallLogin(person=_hash(f"{row} {login.at}")[:16], token=tokens.access)
            if login.lease and login.leased_until > now:
                await asyncio.sleep(min(_POLL, login.leased_until - now))
                continue
            leased = replace(login, lease=secrets.token_hex(8), leased_until=now + _LEASE)
            if await self._state.replace(row, text, leased.to_json()):
                # A call that is stopped does not stop it: the old token may be of no use any more.
                task = asyncio.create_task(self._refresh(server, row, leased, tokens), name="login refresh")
                self._refreshes.add(task)
                task.add_done_callback(self._end_refresh)
                is_renewed = await asyncio.shield(task)
                if not is_renewed:
                    raise LoginUnavailable(f"the login at {name} cannot be renewed now")

    def _end_refresh(self, task: asyncio.Task[bool]) -> None:
        self._refreshes.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), StoreUnavailable):
            log.warning("login.not_stored", reason=str(error))  # maybe nobody waits for it any more

    async def _refresh(self, server: LoginServer, row: str, leased: _LoginRow, tokens: _SealedTokens) -> bool:
        """Replace the leased row by one with new tokens, or by one that is over; False: by one that is neither.

        If the row has changed, the person has signed out or in again, or the lease has ended: it stays as it is. But
        new tokens also replace the old ones if another gateway was refused with those after the lease, and are revoked
        if no row is left.
        """
        ended = replace(leased, lease="", leased_until=0.0)
        result = replace(ended, is_over=True)
        is_available = True
        if tokens.refresh:
            try:
                found = await self.client.refresh(server.config, self._client_secret(server), tokens.refresh)
            except OAuthFailed as failed:
                is_available = failed.is_refused
                log.warning("login.not_renewed", server=server.name, reason=str(failed), is_over=failed.is_refused)
                result = result if failed.is_refused else ended
            else:
                sealed = self._seal_tokens(_sealed(server, found), row)
                result = replace(ended, sealed=sealed, expires=self._token_end(found))
        if not await self._store_refreshed(row, leased, result):  # who removed the row has revoked the old token
            await self._revoke(server, row, result.to_json())
        return is_available

    async def _store_refreshed(self, row: str, leased: _LoginRow, result: _LoginRow) -> bool:
        """Replace the leased row by *result*; False if that has new tokens and no row is left."""
        is_new, tries = result.sealed != leased.sealed, 0
        while True:
            try:
                before: str | None = leased.to_json()
                while before is not None and not await self._state.replace(row, before, result.to_json()):
                    before = await self._state.load(row) if is_new else None
                    if before is not None and _LoginRow(**json.loads(before)).sealed != leased.sealed:
                        break
            except StoreUnavailable:
                tries += 1
                if tries > _STORE_TRIES:
                    raise
                await asyncio.sleep(_STORE_AGAIN)
            else:
                return before is not None or not is_new

    async def _newest(self, server: str, account: str) -> tuple[str, str]:
        """Return name and text of the row of the person's latest sign-in; "" without one."""
        found = []
        for each in self._accounts(account):
            row = _login_name(server, each)
            if (text := await self._state.load(row)) is not None:
                found.append((json.loads(text)["at"], row, text))
        return max(found)[1:] if found else ("", "")

    def _token_end(self, tokens: GrantedTokens) -> float | None:
        return None if tokens.lifetime is None else self._now().timestamp() + tokens.lifetime

    def _seal_tokens(self, tokens: _SealedTokens, row: str) -> str:
        return self.vault.seal(json.dumps(asdict(tokens)), row)

    def _open_tokens(self, sealed: str, row: str) -> _SealedTokens | None:
        text = self.vault.open(sealed, row)
        value = {} if text is None else json.loads(text)
        return _SealedTokens(**(value["tokens"] if row.startswith(_PENDING) else value)) if value else None

    def _client_secret(self, server: LoginServer) -> str:
        sealed = server.config.secret
        return (self.vault.open(sealed, client_row(server.name)) or "") if sealed else ""

    # -- lists and ends ----------------------------------------------------------------------------

    async def summaries(self, accounts: Collection[str] | None = None) -> Sequence[LoginSummary]:
        """Return the logins of *accounts*, by default all, by server and account."""
        return [
            LoginSummary(
                server=name.split("/", 2)[1],
                account=name.split("/", 2)[2],
                at=datetime.fromisoformat(fields["at"]),
                is_over=fields["is_over"],
            )
            for name, fields in sorted((await self._rows(_LOGIN)).items())
            if accounts is None or name.split("/", 2)[2] in accounts
        ]

    async def of_person(self, account: str) -> Sequence[LoginSummary]:
        """Return the logins of the person with *account*, one for each server."""
        found = {
            each.server: each for each in sorted(await self.summaries(self._accounts(account)), key=lambda e: e.at)
        }
        return [found[name] for name in sorted(found)]

    async def sign_out(self, name: str, account: str) -> bool:
        """Remove the person's login at a server, finished or not, and revoke its token there; False without one."""
        server, is_found = self._server(name), False
        for each in self._accounts(account):
            for row in (f"{_PENDING}{name}/{each}", _login_name(name, each)):
                text = await self._state.take(row)
                if text is not None:
                    is_found = True
                    await self._revoke(server, row, text)
        return is_found

    async def _revoke(self, server: LoginServer | None, row: str, text: str) -> bool:
        """Revoke the token of a removed login, finished or not, at the service; False if that was not confirmed.

        A service without a revocation endpoint is not asked (RFC 7009 is optional): its tokens end by themselves.
        """
        if server is None or not server.config.revoke:
            return True
        try:
            tokens = self._open_tokens(json.loads(text)["sealed"], row)
            if tokens is not None and tokens.is_of(server):
                await self.client.revoke(server.config, self._client_secret(server), tokens.refresh or tokens.access)
                return True
            cause = "sealed with another key" if tokens is None else "of another address, issuer or client"
            reason = f"its tokens are {cause}"
        except (OAuthFailed, KeyMissing) as failed:
            reason = str(failed)
        log.warning("login.not_revoked", server=server.name, reason=reason)
        return False

    async def forget(
        self,
        *,
        accounts: Collection[str] | None = None,
        server: str = "",
        login: LoginServer | None = None,
        waits: bool = False,
    ) -> int:
        """Remove the logins of *accounts* (None = all), or those at *server*, finished or not.

        Their tokens are then revoked at the services, in the background: a service that hangs delays nothing, and a
        failure is logged. With *waits*, return the number of tokens of which no revocation was confirmed. *login* is
        the server as it was, if it has been removed.
        """
        revocations: list[asyncio.Task[bool]] = []
        for name, fields in (await self._rows(_ATTEMPT)).items():
            if (fields["server"] == server) if server else (accounts is None or fields["account"] in accounts):
                await self._state.save(name, None)
        for prefix in (_PENDING, _LOGIN):
            for name in await self._state.all(prefix):
                _, at, account = name.split("/", 2)
                if (at == server) if server else (accounts is None or account in accounts):
                    text = await self._state.take(name)
                    if text is not None:
                        revocation = self._revoke(login or self._server(at), name, text)
                        task = asyncio.create_task(revocation, name="login revocation")
                        self._refreshes.add(task)
                        task.add_done_callback(self._end_refresh)
                        revocations.append(task)
        return (await asyncio.gather(*revocations)).count(False) if waits else 0

    async def prune(self) -> int:
        """Remove sign-ins that were not finished in time; return their number."""
        now, removed = self._now().timestamp(), 0
        for prefix in (_ATTEMPT, _PENDING):
            for name, fields in (await self._rows(prefix)).items():
                if fields["expires"] <= now:
                    await self._state.save(name, None)
                    removed += 1
        return removed

    async def _rows(self, prefix: str) -> Mapping[str, Any]:
        return {name: json.loads(text) for name, text in (await self._state.all(prefix)).items()}


def client_row(server: str) -> str:
    """Return the name that the client secret of a server is sealed with."""
    return f"client/{server}"


def _place(server: LoginServer) -> list[str]:
    """Return what a sign-in and its tokens are bound to."""
    return [server.url, server.config.issuer, server.config.client_id]


def _login_name(server: str, account: str) -> str:
    return f"{_LOGIN}{server}/{account}"


def _hash(state: str) -> str:
    return hashlib.sha256(state.encode()).hexdigest()


def _sealed(server: LoginServer, tokens: GrantedTokens) -> _SealedTokens:
    config = server.config
    return _SealedTokens(
        url=server.url, issuer=config.issuer, client_id=config.client_id, access=tokens.access, refresh=tokens.refresh
    )
