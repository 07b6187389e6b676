"""People sign in to an MCP server with their own accounts, and each call uses the login of who asked."""

from __future__ import annotations

import asyncio
import io
import json
import re
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest
from structlog.testing import capture_logs

from agent.mcp.logins import LoginNeeded
from agent.mcp.oauth import OAuthClient, OAuthFailed
from gateway.admission import AdmissionPolicy
from gateway.errors import UserError
from tests.e2e.agent.test_mcp import call
from tests.e2e.agent.test_tool_questions import decide
from tests.fakes.conditions import eventually
from tests.fakes.forked_mcp import forked_children as forked_children
from tests.fakes.held_model import HeldScriptModel, calls, results
from tests.fakes.inprocess_gateway import AllAccounts, InProcessGateway, gateway
from tests.fakes.oauth_mcp import CLIENT, SECRET, AuthorizationServer, oauth_mcp_server
from tests.unit.ops.test_memory_cli import CommandTerminal
from tests.unit.ops.test_memory_cli import terminal as terminal

pytestmark = pytest.mark.usefixtures("forked_children")

MINE = ("use_tool", '{"name": "mcp_tracker_my_issues", "arguments": {}}')
CREATE = ("use_tool", '{"name": "mcp_tracker_create_issue", "arguments": {"title": "roof"}}')
ANN = "pocket%3aann"
ANYBODY = AdmissionPolicy(channel="pocket", owners=AllAccounts())


class Clock:
    """A clock that goes on when a test says so."""

    def __init__(self) -> None:
        self.passed = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.passed


@asynccontextmanager
async def signed_up(*turns: Any, **options: Any) -> AsyncIterator[tuple[InProcessGateway, AuthorizationServer, Any]]:
    """A gateway whose owner has pinned the server, let people sign in, and allowed both tools."""
    model = HeldScriptModel(*turns)
    async with oauth_mcp_server() as (server, created), gateway(model=model, policy=ANYBODY, **options) as parlour:
        await set_up(parlour, server)
        yield parlour, server, (model, created)


async def set_up(parlour: InProcessGateway, server: AuthorizationServer) -> None:
    """Do what the owner does."""
    await call(parlour, "mcp add", name="tracker", url=server.url, private=True)
    server.register(parlour.app.logins.redirect("tracker"))
    await call(parlour, "mcp login", name="tracker", client_id=CLIENT, client_secret=SECRET)
    await sign_in(parlour, server, "ann", "owner@tracker")
    await call(parlour, "mcp review", name="tracker", accept=True, person="pocket:ann")
    await call(parlour, "mcp logout", name="tracker", person="pocket:ann")
    await call(parlour, "mcp allow", name="tracker", tools="my_issues", **{"as": "read"})
    await call(parlour, "mcp allow", name="tracker", tools="create_issue")


async def link(parlour: InProcessGateway, who: str, server: str = "tracker") -> str:
    """Return the link that *who* gets in a direct chat."""
    answer = await parlour.channel.ask(who, f"/login {server}", sender=who)
    found = re.search(r"http\S+", answer)
    assert found, answer
    return found[0]


async def open_page(url: str) -> tuple[int, str]:
    """Open *url* as a browser does, through the authorization server back to the gateway."""
    async with aiohttp.ClientSession() as browser, browser.get(url) as response:
        return response.status, await response.text()


def typed(page: str) -> str:
    """Return the command that a page after a sign-in shows."""
    found = re.search(r"<code>(/login tracker \d{6})</code>", page)
    assert found, page
    return found[1]


async def sign_in(parlour: InProcessGateway, server: AuthorizationServer, who: str, user: str) -> None:
    """Sign *who* in as the tracker's *user*."""
    server.user = user
    status, page = await open_page(await link(parlour, who))
    assert status == 200
    assert "signed in to tracker" in await parlour.channel.ask(who, typed(page), sender=who)


async def test_each_call_uses_the_login_of_who_asked() -> None:
    """Ann and Bob ask the same bot for the same, and each sees their own."""
    async with signed_up(calls(MINE), "Ann's.", calls(MINE), "Bob's.", calls(MINE), "None.") as (parlour, server, more):
        model, _ = more
        await sign_in(parlour, server, "ann", "ann@tracker")
        await sign_in(parlour, server, "bob", "bob@tracker")
        for who in ("ann", "bob", "eve"):
            await parlour.channel.ask(who, "my issues?", sender=who)
        told = [results(each)[-1] for each in model.asked if results(each)]
        assert told[0] == "issues of ann@tracker"
        assert told[1] == "issues of bob@tracker"
        assert "has not signed in to tracker" in told[2]
        assert "/login tracker" in told[2]
        lines = await call(parlour, "mcp logins")
        assert [(each["server"], each["account"], each["is_over"]) for each in lines] == [
            ("tracker", "pocket:ann", False),
            ("tracker", "pocket:bob", False),
        ]
        secrets = [*server.accesses, *server.refreshes]
        assert not [each for each in secrets if each in json.dumps(lines)]


async def test_the_page_shows_a_code_and_the_person_of_the_link_types_it() -> None:
    """Who opens a link that somebody else was sent gives them nothing: the code is of the other's chat."""
    async with signed_up() as (parlour, server, _):
        server.user = "victim@tracker"
        status, page = await open_page(await link(parlour, "mallory"))
        assert status == 200
        assert "If another person sent you the link" in page
        assert await parlour.app.logins.summaries() == []
        assert "wrong, used" in await parlour.channel.ask("victim", typed(page), sender="victim")
        for _ in range(5):
            assert "wrong, used" in await parlour.channel.ask("mallory", "/login tracker 000000", sender="mallory")
        # Not by guessing either.
        assert "wrong, used" in await parlour.channel.ask("mallory", typed(page), sender="mallory")
        assert await parlour.app.logins.summaries() == []


async def test_the_link_of_a_group_goes_to_the_direct_chat() -> None:
    """In the group there is neither a link nor a code; without a direct chat nothing is sent."""
    async with signed_up("hi") as (parlour, _, _more):
        answer = await parlour.channel.ask("-g", "/login tracker", sender="bob", group=True, is_addressed=True)
        assert answer == "I send the link to a direct chat only. Write to me there: `/login tracker`"
        await parlour.channel.ask("bob", "hello", sender="bob")
        answer = await parlour.channel.ask("-g", "/login tracker", sender="bob", group=True, is_addressed=True)
        assert answer == "I have sent you the link in our direct chat."
        await parlour.channel.until(lambda: "Sign in to tracker" in parlour.channel.posts["bob"][-1].text)
        assert not [each for each in parlour.channel.posts["-g"] if "http" in each.text]


async def test_in_a_group_the_person_is_asked_and_nobody_else_may_answer() -> None:
    """What a personal tool finds is seen by all; the one whose message started the turn decides."""
    turns = (calls(MINE), "I have asked.", "Shown.")
    async with signed_up(*turns) as (parlour, server, more):
        model, _ = more
        await sign_in(parlour, server, "ann", "ann@tracker")
        await sign_in(parlour, server, "bob", "bob@tracker")
        here: dict[str, Any] = {"group": True, "is_addressed": True}
        question = await parlour.channel.ask("-g", "my issues?", sender="bob", **here)
        assert "All members of this chat will see" in question
        press = decide(question)
        refused = await parlour.channel.ask("-g", press, sender="ann", is_admin=True, **here)
        assert refused.startswith("Only the person who asked")
        await parlour.channel.ask("-g", press, sender="bob", **here)
        await parlour.idle()
        assert results(model.asked[-1])[-1] == "issues of bob@tracker"


async def test_an_act_uses_the_login_of_who_allowed_it() -> None:
    """The stored call runs in a turn of its own, as the person who asked."""
    async with signed_up(calls(CREATE), "Asked.", "Done.") as (parlour, server, more):
        _, created = more
        await sign_in(parlour, server, "ann", "ann@tracker")
        await sign_in(parlour, server, "bob", "bob@tracker")
        question = await parlour.channel.ask("bob", "create it", sender="bob")
        await parlour.channel.ask("bob", decide(question), sender="bob")
        await parlour.idle()
        assert created == [("bob@tracker", "roof")]


async def test_a_state_is_used_once_and_ends() -> None:
    """A callback again, a made-up one, one that is late."""
    clock = Clock()
    async with signed_up(now=clock) as (parlour, server, _):
        url = await link(parlour, "ann")
        async with aiohttp.ClientSession() as browser, browser.get(url, allow_redirects=False) as response:
            back = response.headers["Location"]
        redirect = parlour.app.logins.redirect("tracker")
        assert (await open_page(back))[0] == 200
        status, page = await open_page(back)
        assert status == 400
        assert "has been used, or is too old" in page
        assert (await open_page(f"{redirect}?state=<b>x&code=y"))[0] == 400
        assert (await open_page(redirect))[0] == 400
        late = await link(parlour, "ann")
        clock.passed += timedelta(minutes=11)
        assert (await open_page(late))[0] == 400
        # A code that nobody has typed in time.
        page = (await open_page(await link(parlour, "ann")))[1]
        clock.passed += timedelta(minutes=11)
        assert "wrong, used" in await parlour.channel.ask("ann", typed(page), sender="ann")
        await parlour.app.logins.prune()
        state = parlour.app.store.state("mcp/")
        assert [await state.all(prefix) for prefix in ("attempt/", "pending/", "login/")] == [{}, {}, {}]
        assert server.asked


@pytest.mark.parametrize(("iss", "is_promised"), [("https://evil.example", False), (None, True), ("", True)])
async def test_an_answer_of_another_issuer_is_refused(iss: str | None, is_promised: bool) -> None:
    """RFC 9207: a wrong `iss`, or none from a server that sends it. The code is not sent anywhere."""
    async with oauth_mcp_server() as (server, _), gateway(policy=ANYBODY) as parlour:
        server.metadata["authorization_response_iss_parameter_supported"] = is_promised
        await call(parlour, "mcp add", name="tracker", url=server.url, private=True)
        server.register(parlour.app.logins.redirect("tracker"))
        await call(parlour, "mcp login", name="tracker", client_id=CLIENT, client_secret=SECRET)
        server.iss = iss
        status, page = await open_page(await link(parlour, "ann"))
        assert status == 400
        assert "did not work" in page
        assert not [body for path, body in server.asked if path == "/token"]


async def test_texts_of_others_are_not_shown() -> None:
    """An error and its description are markup in the address, and nothing on the page."""
    async with signed_up() as (parlour, server, _):
        server.is_denied = True
        url = await link(parlour, "ann")
        state = parse_qs(urlsplit(url).query)["state"][0]
        redirect = parlour.app.logins.redirect("tracker")
        nasty = "<script>alert(1)</script>"
        status, page = await open_page(f"{redirect}?state={state}&error={nasty}&error_description={nasty}")
        assert status == 200
        assert "have not allowed it" in page
        assert "script" not in page


async def test_tokens_are_sealed_and_another_key_ends_the_start(tmp_path: Path) -> None:
    """No byte of the home but the key tells a token; the error says what to put back."""
    home = tmp_path / "home"
    async with oauth_mcp_server() as (server, _):
        async with gateway(home=home, policy=ANYBODY, model=HeldScriptModel()) as parlour:
            await set_up(parlour, server)
            await sign_in(parlour, server, "ann", "ann@tracker")
            await parlour.idle()
        tokens = [each.encode() for each in (*server.accesses, *server.refreshes, SECRET)]
        for file in home.rglob("*"):
            data = file.read_bytes() if file.is_file() else b""
            assert not [each for each in tokens if each in data], file
        key = home / "secrets" / "tools__login_key"
        assert key.stat().st_mode & 0o777 == 0o600
        kept = key.read_text("utf-8")
        key.write_text("another key that is long enough to be one\n", "utf-8")
        with pytest.raises(UserError, match="is not the one that they were sealed with: put back the file"):
            async with gateway(home=home, policy=ANYBODY):
                pass
        key.unlink()
        with pytest.raises(UserError, match=r"tools\.login_key is not set"):
            async with gateway(home=home, policy=ANYBODY):
                pass
        key.write_text(kept, "utf-8")
        model = HeldScriptModel(calls(MINE), "Here.")
        async with gateway(home=home, policy=ANYBODY, model=model) as parlour:
            await parlour.channel.ask("ann", "my issues?", sender="ann")
            assert results(model.asked[-1])[-1] == "issues of ann@tracker"


async def test_a_token_is_renewed_when_it_ends_and_when_it_is_refused() -> None:
    """One refresh each; a refresh that is refused leaves the login, which then says so."""
    clock = Clock()
    turns = [calls(MINE), "1"] * 4
    async with signed_up(*turns, now=clock) as (parlour, server, more):
        model, _ = more
        await sign_in(parlour, server, "ann", "ann@tracker")

        def refreshes() -> list[str]:
            return [body for _, body in server.asked if "grant_type=refresh_token" in body]

        await parlour.channel.ask("ann", "1?", sender="ann")
        assert refreshes() == []
        clock.passed += timedelta(hours=2)
        await parlour.channel.ask("ann", "2?", sender="ann")
        assert len(refreshes()) == 1
        server.accesses.clear()  # revoked before its time
        await parlour.channel.ask("ann", "3?", sender="ann")
        assert len(refreshes()) == 2
        assert [results(each)[-1] for each in model.asked if results(each)][:5:2] == ["issues of ann@tracker"] * 3
        server.accesses.clear()
        server.refreshes.clear()
        await parlour.channel.ask("ann", "4?", sender="ann")
        assert "has to sign in again" in results(model.asked[-1])[-1]
        assert (await call(parlour, "mcp logins"))[0]["is_over"]
        assert "please sign in again" in await parlour.channel.ask("ann", "/login", sender="ann")
        assert not parlour.app.mcp.troubles()  # the service is not down


async def test_signing_out_revokes_and_removes() -> None:
    """By the person, by the owner, with the server's pin, and when the person is erased."""
    async with signed_up() as (parlour, server, _):
        state = parlour.app.store.state("mcp/")
        await sign_in(parlour, server, "ann", "ann@tracker")
        assert "signed in since" in await parlour.channel.ask("ann", "/login", sender="ann")
        assert "signed out" in await parlour.channel.ask("ann", "/logout tracker", sender="ann")
        assert not server.refreshes
        assert await state.all("login/") == {}
        await sign_in(parlour, server, "ann", "ann@tracker")
        await sign_in(parlour, server, "bob", "bob@tracker")
        await parlour.idle()
        await call(parlour, "people export", person="pocket:ann", file=str(parlour.home / "ann.zip"))
        with zipfile.ZipFile(parlour.home / "ann.zip") as exported:
            texts = {name: exported.read(name) for name in exported.namelist()}
        assert json.loads(texts["logins.jsonl"])["service"] == "tracker"
        tokens = [each.encode() for each in (*server.accesses, *server.refreshes)]
        assert not [name for name, text in texts.items() for token in tokens if token in text]
        await call(parlour, "people forget", person="pocket:ann")
        assert [each["account"] for each in await call(parlour, "mcp logins")] == ["pocket:bob"]
        await eventually(lambda: len(server.refreshes) == 1)  # Bob's
        assert await call(parlour, "mcp remove", name="tracker") == [{"server": "tracker", "unrevoked": 0}]
        assert await state.all("login/") == {}
        assert not server.refreshes


@pytest.mark.parametrize("ends", ["/logout", "people forget", "mcp remove"])
async def test_tokens_of_a_refresh_under_way_are_revoked(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old token is revoked when the login ends, and the new pair when the service has answered."""
    clock = Clock()
    async with signed_up(now=clock) as (parlour, server, _):
        await sign_in(parlour, server, "ann", "ann@tracker")
        await parlour.idle()
        clock.passed += timedelta(hours=2)
        asked, may_answer = asyncio.Event(), asyncio.Event()
        exchange = server.exchange_refresh_token

        async def answer_late(*given: Any) -> Any:
            pair = await exchange(*given)
            asked.set()
            await may_answer.wait()
            return pair

        monkeypatch.setattr(server, "exchange_refresh_token", answer_late)
        refresh = asyncio.create_task(parlour.app.logins.find("tracker", ANN))
        await asked.wait()
        await end_login(parlour, ends)
        assert len(server.refreshes) == 1  # which no row knows yet
        may_answer.set()
        with pytest.raises(LoginNeeded):
            await refresh
        await parlour.app.logins.close()
        assert not server.refreshes
        assert not server.accesses


@pytest.mark.parametrize("ends", ["/logout", "people forget", "mcp remove"])
async def test_tokens_that_wait_for_their_code_are_revoked(ends: str) -> None:
    """Signed in at the service, and the code of the page was not typed yet."""
    async with signed_up() as (parlour, server, _):
        _, page = await open_page(await link(parlour, "ann"))
        await parlour.idle()
        assert len(server.refreshes) == 1
        await end_login(parlour, ends)
        await parlour.app.logins.close()
        assert not server.refreshes
        assert not server.accesses
        if ends != "mcp remove":
            assert "wrong, used" in await parlour.channel.ask("ann", typed(page), sender="ann")


async def end_login(parlour: InProcessGateway, ends: str) -> None:
    """End Ann's login in one of the ways to."""
    if ends == "/logout":
        assert "signed out" in await parlour.channel.ask("ann", "/logout tracker", sender="ann")
    elif ends == "people forget":
        await call(parlour, "people forget", person="pocket:ann")
    else:
        await call(parlour, "mcp remove", name="tracker")


async def test_tokens_that_cannot_be_opened_are_not_said_to_be_revoked() -> None:
    """Sealed with another key, or of an address that the server had before: the operator is told the number."""
    async with signed_up() as (parlour, server, _):
        state = parlour.app.store.state("mcp/")
        for who in ("ann", "bob", "carl"):
            await sign_in(parlour, server, who, f"{who}@tracker")
        await parlour.idle()
        texts = await state.all("login/")
        bob, carl = (f"login/tracker/pocket%3a{who}" for who in ("bob", "carl"))
        await state.save(bob, json.dumps({**json.loads(texts[bob]), "sealed": json.loads(texts[carl])["sealed"]}))
        tokens = json.loads(parlour.app.logins.vault.open(json.loads(texts[carl])["sealed"], carl) or "")
        sealed = parlour.app.logins.vault.seal(json.dumps({**tokens, "url": "https://before.example/mcp"}), carl)
        await state.save(carl, json.dumps({**json.loads(texts[carl]), "sealed": sealed}))
        with capture_logs() as logs:
            assert await call(parlour, "mcp remove", name="tracker") == [{"server": "tracker", "unrevoked": 2}]
        reasons = sorted(each["reason"] for each in logs if each["event"] == "login.not_revoked")
        assert reasons == [
            "its tokens are of another address, issuer or client",
            "its tokens are sealed with another key",
        ]
        assert len(server.refreshes) == 2


async def test_a_service_that_revokes_nothing_delays_no_erasure(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hangs is waited for behind the erasure; one that refuses is named to the operator who removes it."""
    begun, may_answer = asyncio.Event(), asyncio.Event()

    async def hang(*_: object) -> None:
        begun.set()
        await may_answer.wait()
        raise OAuthFailed("the authorization server did not revoke the token")

    async with signed_up() as (parlour, server, _):
        state = parlour.app.store.state("mcp/")
        await sign_in(parlour, server, "ann", "ann@tracker")
        await sign_in(parlour, server, "bob", "bob@tracker")
        await parlour.idle()
        monkeypatch.setattr(OAuthClient, "revoke", hang)
        await call(parlour, "people forget", person="pocket:ann")
        await begun.wait()
        assert list(await state.all("login/")) == ["login/tracker/pocket%3abob"]
        may_answer.set()
        assert await call(parlour, "mcp remove", name="tracker") == [{"server": "tracker", "unrevoked": 1}]
        assert await state.all("login/") == {}


async def test_the_operator_sees_what_is_pinned_and_says_yes(
    terminal: CommandTerminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Issuer, addresses, client and scopes; a no pins nothing, --yes asks nothing, what changed since is refused."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    login = ("mcp", "login", "tracker", "--client-id", CLIENT, "--client-secret", str(secret))

    async def run(*words: str, answer: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        return await asyncio.to_thread(terminal.run, *words)

    async with oauth_mcp_server() as (server, _), gateway(home=terminal.home, policy=ANYBODY) as parlour:
        await call(parlour, "mcp add", name="tracker", url=server.url, private=True)
        server.register(parlour.app.logins.redirect("tracker"))
        code, out, _ = await run(*login, answer="n\n")
        assert code == 1
        for shown in (server.issuer, CLIENT, "people sign in at", "people allow", "Let people sign in to tracker"):
            assert shown in out
        assert parlour.app.mcp.login_names == []
        code, out, _ = await run(*login, answer="y\n")
        assert (code, parlour.app.mcp.login_names) == (0, ["tracker"])
        code, out, _ = await run("mcp", "login", "tracker", "--off", answer="n\n")
        assert (code, parlour.app.mcp.login_names) == (1, ["tracker"])
        code, out, _ = await run("mcp", "login", "tracker", "--off", "--yes")
        assert (code, parlour.app.mcp.login_names) == (0, [])
        code, _, err = await run(*login[:-1], "-", answer=f"{SECRET}\n")
        assert (code, "give --yes as well" in err) == (2, True)
        code, out, _ = await run(*login[:-1], "-", "--yes", answer=f"{SECRET}\n")
        assert (code, "sign in at" in out, parlour.app.mcp.login_names) == (0, True, ["tracker"])
        with pytest.raises(UserError, match="in another way than a moment ago"):
            await call(parlour, "mcp login", name="tracker", client_id=CLIENT, confirmed="other")
