"""Authorization servers that attack a sign-in: mixed up with another, or replaced between the link and the callback."""

from __future__ import annotations

from functools import partial
from urllib.parse import parse_qs, urlencode, urlsplit

import aiohttp
import pytest
from starlette.responses import RedirectResponse

from agent.mcp.servers import STATE, PinnedServer
from gateway.errors import UserError
from gateway.ports.channel import CACHED_NOTES
from tests.e2e.agent.test_mcp import call
from tests.e2e.agent.test_mcp_logins import ANYBODY, link, open_page
from tests.fakes.inprocess_gateway import InProcessGateway, gateway
from tests.fakes.oauth_mcp import CLIENT, AuthorizationServer, oauth_mcp_server


async def set_up(parlour: InProcessGateway, name: str, server: AuthorizationServer) -> None:
    """Let people sign in to *server*, pinned without its tools, as a client without a secret."""
    pin = PinnedServer(name=name, url=server.url, is_private=True, pinned_at="2026-01-01")
    await parlour.app.store.state(STATE).save(f"{CACHED_NOTES}server.{name}", pin.to_json())
    server.register(parlour.app.logins.redirect(name), secret=None)
    await call(parlour, "mcp login", name=name, client_id=CLIENT)


async def test_a_code_of_one_server_is_not_sent_to_another() -> None:
    """A hostile one sends the browser on to an honest one that sends no `iss`: the code comes back for that one alone.

    With one redirect address for all, the hostile one would get the code and the verifier, which is all that it needs.
    """
    async with (
        oauth_mcp_server() as (honest, _),
        oauth_mcp_server() as (evil, _),
        gateway(policy=ANYBODY) as parlour,
    ):
        await set_up(parlour, "tracker", honest)
        await set_up(parlour, "evil", evil)
        url = await link(parlour, "ann", "evil")
        fields = {key: each[0] for key, each in parse_qs(urlsplit(url).query).items()}
        for redirect in (fields["redirect_uri"], parlour.app.logins.redirect("tracker")):
            stolen = {**fields, "redirect_uri": redirect, "resource": honest.url}
            target = f"{honest.issuer}/authorize?{urlencode(stolen)}"
            evil.answers["/authorize"] = partial(RedirectResponse, target, 302)
            status, _ = await open_page(f"{evil.issuer}/authorize")
            assert status == 400
        assert honest.codes
        assert not [body for path, body in evil.asked if path == "/token"]


async def test_a_code_is_not_sent_to_the_server_that_has_taken_the_place() -> None:
    """The owner names another authorization server while somebody signs in."""
    async with (
        oauth_mcp_server() as (first, _),
        oauth_mcp_server() as (second, _),
        gateway(policy=ANYBODY) as parlour,
    ):
        await set_up(parlour, "tracker", first)
        url = await link(parlour, "ann")
        async with aiohttp.ClientSession() as browser, browser.get(url, allow_redirects=False) as response:
            back = response.headers["Location"]
        await call(parlour, "mcp login", name="tracker", client_id=CLIENT, issuer=second.issuer)
        assert (await open_page(back))[0] == 400
        assert not [body for path, body in second.asked if path == "/token"]


async def test_tokens_are_not_sent_in_the_clear() -> None:
    """A public server at an http address has no logins; the metadata are not asked for."""
    async with gateway(policy=ANYBODY) as parlour:
        state = parlour.app.store.state(STATE)
        pin = PinnedServer(name="clear", url="http://clear.example/mcp", is_private=False, pinned_at="2026-01-01")
        await state.save(f"{CACHED_NOTES}server.clear", pin.to_json())
        with pytest.raises(UserError, match="not an https address"):
            await call(parlour, "mcp login", name="clear", client_id=CLIENT, issuer="https://id.example")
