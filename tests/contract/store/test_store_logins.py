"""People's logins over both engines: one refresh for all gateways, and no token lost to a kill at any store call."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.mcp.logins import (
    CallbackResult,
    KeyMissing,
    LoginNeeded,
    LoginServer,
    LoginUnavailable,
    LoginVault,
    PersonLogins,
)
from agent.mcp.oauth import GrantedTokens, LoginConfig, OAuthFailed
from gateway.events import PlatformAccount
from gateway.store.records import SqlChannelState
from gateway.store.sql_store import SqlStore
from tests.contract.store.conftest import StoreBackend
from tests.fakes.shared_workers import Workers

ANN = PlatformAccount(kind="pocket", id="ann")
KEY = "k" * 40
SERVER = LoginServer(
    name="tracker",
    url="https://tracker.example/mcp",
    config=LoginConfig(
        resource="https://tracker.example/mcp",
        issuer="https://id.example",
        authorize="https://id.example/a",
        token="https://id.example/t",
        client_id="c",
    ),
)


class TokenServer:
    """Gives a new refresh token each time; the one before works again until the new one is used, as with many."""

    def __init__(self, *, is_strict: bool = False) -> None:
        self.valid = {"r0"}
        self.last = ""
        self.given = itertools.count(1)
        self.refreshes = 0
        self.is_strict = is_strict
        self.asked = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()
        self.is_down = False

    async def redeem(self, *_: Any, **_more: Any) -> GrantedTokens:
        """Give the first tokens."""
        return GrantedTokens(access="a0", refresh="r0", lifetime=3_600)

    async def refresh(self, _: LoginConfig, _secret: str, token: str) -> GrantedTokens:
        """Give others."""
        self.refreshes += 1
        self.asked.set()
        await self.open.wait()
        if self.is_down:
            raise OAuthFailed("it is down")
        if token not in self.valid and (self.is_strict or token != self.last):
            raise OAuthFailed("no", is_refused=True)
        number = next(self.given)
        self.last, self.valid = token, {f"r{number}"}
        return GrantedTokens(access=f"a{number}", refresh=f"r{number}", lifetime=3_600)


class Killed(BaseException):
    """The process has ended here."""


class DyingState:
    """The notes of a process that ends before or after its *at*-th call."""

    def __init__(self, state: SqlChannelState, at: int = 0, *, is_after: bool = False) -> None:
        self._state = state
        self._at = at
        self._is_after = is_after
        self.calls = 0
        self.is_dead = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._state, name)
        if name not in ("load", "save", "replace", "take", "all"):
            return found

        async def call(*arguments: Any) -> Any:
            self.calls += 1
            is_last = self.is_dead or self.calls == self._at
            self.is_dead = is_last
            if is_last and not (self._is_after and self.calls == self._at):
                raise Killed
            result = await found(*arguments)
            if is_last:
                raise Killed
            return result

        return call


class LateState:
    """The notes of a gateway whose second change waits, as with a store that is away."""

    def __init__(self, state: SqlChannelState) -> None:
        self._state = state
        self._changes = itertools.count(1)
        self.is_late, self.go_on = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    async def replace(self, name: str, before: str | None, value: str | None) -> bool:
        """Replace a note."""
        if next(self._changes) == 2:
            self.is_late.set()
            await self.go_on.wait()
        return await self._state.replace(name, before, value)


class Clock:
    """A clock that goes on when a test says so."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 2, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


def gateway_of(store: SqlStore, server: TokenServer, clock: Clock, state: Any = None) -> PersonLogins:
    """Return the logins as one gateway has them."""
    notes: Any = state or store.state("mcp/")
    client: Any = server
    return PersonLogins(
        notes,
        LoginVault(notes, Path("/nowhere"), KEY),
        client,
        server=lambda name: SERVER if name == SERVER.name else None,
        accounts=lambda account: [account],
        address=lambda: "https://me.example",
        now=clock,
    )


async def sign_in(logins: PersonLogins) -> None:
    """Sign Ann in."""
    await logins.vault.make_key()
    url = await logins.begin("tracker", ANN, language="en")
    state = url.partition("state=")[2].partition("&")[0]
    result, _, _, typed = await logins.take_callback("tracker", state=state, code="c", issuer=None, error="")
    assert result is CallbackResult.DONE
    assert await logins.finish("tracker", ANN, typed)


async def one_refresh(gateways: Sequence[PersonLogins], server: TokenServer, clock: Clock) -> None:
    """Let ten calls at each gateway need a new token at once."""
    clock.now += timedelta(hours=2)
    server.open.clear()
    calls = [asyncio.create_task(each.find("tracker", ANN.name)) for each in gateways for _ in range(10)]
    await server.asked.wait()
    server.open.set()
    found = await asyncio.gather(*calls)
    assert {each.token for each in found} == {"a1"}
    assert server.refreshes == 1
    # A token that the service refuses, too.
    found = await asyncio.gather(
        *(each.find("tracker", ANN.name, except_token="a1") for each in gateways for _ in range(5))
    )
    assert {each.token for each in found} == {"a2"}
    assert server.refreshes == 2


async def test_gateways_that_share_a_store_have_a_key_before(store: SqlStore, tmp_path: Path) -> None:
    """One that a gateway made for itself would end the starts of the others; another key is refused at once."""
    state = store.state("mcp/")
    alone = LoginVault(state, tmp_path / "secrets", "", is_shared=True)
    with pytest.raises(KeyMissing, match=r"set tools\.login_key on each"):
        await alone.make_key()
    assert not (tmp_path / "secrets").exists()
    one = LoginVault(state, tmp_path, KEY, is_shared=True)
    await one.make_key()
    assert one.open(one.seal("x", "row"), "row") == "x"
    assert one.open(one.seal("x", "row"), "another row") is None
    other = LoginVault(state, tmp_path, "o" * 40, is_shared=True)
    for use in (other.check, lambda: other.seal("x", "row")):
        with pytest.raises(KeyMissing, match="not the one"):
            use()


async def test_many_calls_make_one_refresh(store: SqlStore) -> None:
    """Of one gateway, and of two over one store."""
    server, clock = TokenServer(), Clock()
    gateways = [gateway_of(store, server, clock) for _ in range(2)]
    await sign_in(gateways[0])
    await one_refresh(gateways, server, clock)


async def test_two_gateways_of_a_database_make_one_refresh(team: Workers) -> None:
    """Each with its own connections to the server."""
    server, clock = TokenServer(), Clock()
    gateways = [gateway_of(await team.open(), server, clock) for _ in range(2)]
    await sign_in(gateways[0])
    await one_refresh(gateways, server, clock)


async def test_no_kill_at_a_store_call_loses_a_token(backend: StoreBackend) -> None:
    """Before and behind each call of a refresh: the next process has the old token or the new one, and goes on."""
    plain, clock = TokenServer(), Clock()
    store = await backend.open()
    await sign_in(gateway_of(store, plain, clock))
    dry = DyingState(store.state("mcp/"))
    clock.now += timedelta(hours=2)
    await gateway_of(store, plain, clock, dry).find("tracker", ANN.name)
    assert dry.calls >= 3  # the row, the lease, the new tokens
    kills = 0
    for at, is_after in itertools.product(range(1, dry.calls + 1), (False, True)):
        clock.now += timedelta(hours=2)
        dying = DyingState(store.state("mcp/"), at, is_after=is_after)
        with pytest.raises(Killed):
            await gateway_of(store, plain, clock, dying).find("tracker", ANN.name)
        kills += 1
        store = await backend.reopen()
        clock.now += timedelta(minutes=1)  # the lease of the dead one ends
        found = await gateway_of(store, plain, clock).find("tracker", ANN.name)
        assert found.token == f"a{next(plain.given) - 1}"
        plain.given = itertools.count(int(found.token[1:]) + 1)
    assert kills == 2 * dry.calls


async def test_a_strict_server_costs_a_login_and_not_its_row(store: SqlStore) -> None:
    """Killed between the server's answer and its storing: the person signs in again, which replaces the row."""
    server, clock = TokenServer(is_strict=True), Clock()
    await sign_in(gateway_of(store, server, clock))
    clock.now += timedelta(hours=2)
    dying = DyingState(store.state("mcp/"), 3)
    with pytest.raises(Killed):
        await gateway_of(store, server, clock, dying).find("tracker", ANN.name)
    clock.now += timedelta(minutes=1)
    logins = gateway_of(store, server, clock)
    with pytest.raises(LoginNeeded, match="sign in again"):
        await logins.find("tracker", ANN.name)
    (left,) = await logins.summaries()
    assert left.is_over
    server.valid = {"r0"}
    await sign_in(logins)
    assert (await logins.find("tracker", ANN.name)).token == "a0"


async def test_a_late_answer_is_stored_though_another_gateway_was_refused(store: SqlStore) -> None:
    """A lease ends while its gateway waits for the store: the other's old token is of no use, and the answer counts."""
    server, clock = TokenServer(is_strict=True), Clock()
    state = LateState(store.state("mcp/"))
    slow, quick = gateway_of(store, server, clock, state), gateway_of(store, server, clock)
    await sign_in(quick)
    clock.now += timedelta(hours=2)
    call = asyncio.create_task(slow.find("tracker", ANN.name))
    await state.is_late.wait()
    clock.now += timedelta(minutes=1)
    with pytest.raises(LoginNeeded, match="sign in again"):
        await quick.find("tracker", ANN.name)
    state.go_on.set()
    assert (await call).token == "a1"
    assert (await quick.find("tracker", ANN.name)).token == "a1"
    assert server.refreshes == 2
    (login,) = await quick.summaries()
    assert not login.is_over


async def test_a_server_that_is_down_costs_nothing(store: SqlStore) -> None:
    """The lease is given back; the next call tries again."""
    server, clock = TokenServer(), Clock()
    logins = gateway_of(store, server, clock)
    await sign_in(logins)
    clock.now += timedelta(hours=2)
    server.is_down = True
    with pytest.raises(LoginUnavailable):
        await logins.find("tracker", ANN.name)
    server.is_down = False
    assert (await logins.find("tracker", ANN.name)).token == "a1"


async def test_a_stopped_call_does_not_stop_the_refresh(store: SqlStore) -> None:
    """The answer is stored all the same: the old token may be of no use any more."""
    server, clock = TokenServer(is_strict=True), Clock()
    logins = gateway_of(store, server, clock)
    await sign_in(logins)
    clock.now += timedelta(hours=2)
    server.open.clear()
    call = asyncio.create_task(logins.find("tracker", ANN.name))
    await server.asked.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    server.open.set()
    await logins.close()
    assert (await logins.find("tracker", ANN.name)).token == "a1"
    assert server.refreshes == 1


async def test_a_refresh_brings_back_no_login_that_was_ended(store: SqlStore) -> None:
    """Signed out, or erased, while it is under way."""
    server, clock = TokenServer(), Clock()
    logins = gateway_of(store, server, clock)
    await sign_in(logins)
    clock.now += timedelta(hours=2)
    server.open.clear()
    call = asyncio.create_task(logins.find("tracker", ANN.name))
    await server.asked.wait()
    await logins.forget(accounts={ANN.name})
    server.open.set()
    with pytest.raises(LoginNeeded, match="not signed in"):
        await call
    assert await store.state("mcp/").all("login/") == {}


async def test_a_person_has_the_logins_of_all_their_accounts(store: SqlStore) -> None:
    """The newest of a server counts; signing out ends all; an account that leaves takes its own along."""
    server, clock = TokenServer(), Clock()
    logins, linked = gateway_of(store, server, clock), ["pocket%3aann", "other%3aann"]
    await sign_in(logins)
    logins._accounts = lambda account: linked if account in linked else [account]
    assert (await logins.find("tracker", "other%3aann")).token == "a0"
    assert [each.account for each in await logins.of_person("other%3aann")] == ["pocket%3aann"]
    linked.remove("other%3aann")
    with pytest.raises(LoginNeeded):
        await logins.find("tracker", "other%3aann")
    linked.append("other%3aann")
    assert await logins.sign_out("tracker", "other%3aann")
    assert await logins.summaries() == []


async def test_a_row_opens_for_its_person_and_address_alone(store: SqlStore) -> None:
    """A row that is copied to another account, or a server that moved, has no token."""
    server, clock, state = TokenServer(), Clock(), store.state("mcp/")
    logins = gateway_of(store, server, clock)
    await sign_in(logins)
    text = await state.load(f"login/tracker/{ANN.name}")
    await state.save("login/tracker/pocket%3abob", text)
    with pytest.raises(LoginNeeded):
        await logins.find("tracker", "pocket%3abob")
    moved = gateway_of(store, server, clock)
    moved._server = lambda _: LoginServer(name="tracker", url="https://evil.example/mcp", config=SERVER.config)
    with pytest.raises(LoginNeeded):
        await moved.find("tracker", ANN.name)
    assert (await logins.find("tracker", ANN.name)).token == "a0"
