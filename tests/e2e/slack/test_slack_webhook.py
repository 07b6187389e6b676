"""HTTP mode: what Slack signed is taken, 200 is said when it is durable, no forger is heard (docs/attacks.md, 13)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from channels.slack import plugin
from gateway.events import InboundKind
from gateway.web.server import WebServer
from tests.fakes.slack import RunningSlack, build, running
from tests.fakes.slack_gateway import CALL, open_gateway
from tests.fakes.slack_http_events import SIGNING_SECRET, encode, post, sign
from tests.fakes.slack_server import ANN, BOB, DM, ROOM, SlackServer, slack_server
from tests.fakes.web_services import FakePageServices

HTTP: dict[str, Any] = {"app_token": None, "signing_secret": SIGNING_SECRET}
FORM = "application/x-www-form-urlencoded"


@asynccontextmanager
async def called(
    services: FakePageServices | None = None, server: SlackServer | None = None
) -> AsyncIterator[tuple[RunningSlack, str]]:
    """Run the channel in HTTP mode behind the real web server; give it and its address."""
    async with slack_server(server) as there, running(there, services or FakePageServices(), **HTTP) as up:
        web = WebServer("127.0.0.1", 0, plugin.routes(up.channel))
        await web.bind()
        serving = asyncio.create_task(web.serve(), name="web server")
        await web.wait_started()
        there.hook = f"http://127.0.0.1:{web.port}/hooks/slack"
        try:
            yield up, there.hook
        finally:
            serving.cancel()
            await asyncio.wait({serving})


def event(text: str = "hello", *, ident: str = "Ev1", ts: str = "1795000000.000100") -> bytes:
    """Return an event as Slack would send it."""
    said = {"type": "message", "channel": DM, "channel_type": "im", "user": ANN, "text": text, "ts": ts}
    return json.dumps({"type": "event_callback", "team_id": "T0HOME", "event_id": ident, "event": said}).encode()


async def test_events_commands_and_clicks_come_by_http() -> None:
    """Messages, mentions and slash commands are heard as over a socket; a click is taken and nothing happens."""
    async with called() as (up, url):
        assert up.channel.is_ready()
        up.server.say(DM, ANN, "hello &amp; welcome")
        up.server.say(ROOM, BOB, f"{CALL} you?")
        trigger = up.server.slash(DM, ANN, "/parlour", "stop now")
        await up.server.until(lambda: len(up.server.acks) == 4)
        heard = {message.text: message for message in up.services.accepted}
        assert set(heard) == {"hello & welcome", "@parlour you?", "/stop now"}
        command = heard["/stop now"]
        assert (command.kind, command.logical_key) == (InboundKind.COMMAND, f"event/{trigger}")
        body, content = encode("interactive", {"type": "block_actions", "trigger_id": "1.2", "actions": []})
        assert (await post(url, body, content))[0] == 200
        assert up.server.connections == 0


async def test_the_address_is_proved_by_its_challenge() -> None:
    """Slack's check of a new address is answered, if it is signed."""
    async with called() as (up, url):
        body = json.dumps({"type": "url_verification", "challenge": "3eZbrw1aB", "token": "x"}).encode()
        assert (await post(url, body))[:2] == (200, "3eZbrw1aB")
        assert (await post(url, body, headers={}))[:2] == (401, "")
        assert up.services.deliveries == []


def forged() -> dict[str, tuple[bytes, dict[str, str]]]:
    """Return every forgery of docs/attacks.md, 13, and some more."""
    body, now = event(), int(time.time())
    retry = {"X-Slack-Retry-Num": "1", "X-Slack-Retry-Reason": "http_timeout"}
    return {
        "no signature": (body, {}),
        "only a time": (body, {"X-Slack-Request-Timestamp": str(now)}),
        "wrong signature": (body, {**sign(body), "X-Slack-Signature": "v0=" + "0" * 64}),
        "another secret": (body, sign(body, secret="f" * 32)),
        "six minutes old": (body, sign(body, at=now - 360)),
        "six minutes early": (body, sign(body, at=now + 360)),
        "body changed": (event("pay me"), sign(body)),
        "time changed": (body, {**sign(body), "X-Slack-Request-Timestamp": str(now - 1)}),
        "no time at all": (body, {**sign(body), "X-Slack-Request-Timestamp": "now"}),
        "a time of another script": (body, {**sign(body), "X-Slack-Request-Timestamp": "\u0661\u0662"}),
        "retry forged": (body, retry),
        "retry with a wrong signature": (body, {**retry, **sign(body, secret="f" * 32)}),
        "an empty secret": (body, sign(body, secret="")),
        "no words at all": (b"\xff\xfe", sign(b"\xff\xff")),
    }


async def test_what_slack_did_not_sign_is_refused() -> None:
    """401, nothing is run, nothing is stored; what is signed is taken right after."""
    async with called() as (up, url):
        calls = len(up.server.calls)
        for name, (body, headers) in forged().items():
            assert (name, *(await post(url, body, headers=headers))[:2]) == (name, 401, "")
        assert up.services.deliveries == []
        assert len(up.server.calls) == calls
        assert (await post(url, event()))[0] == 200
        assert len(up.services.accepted) == 1


async def test_a_replay_within_five_minutes_has_no_effect() -> None:
    """The very same request again is 200 and nothing else; a new signature around a known event is a duplicate."""
    async with called() as (up, url):
        body = event()
        headers = sign(body, at=int(time.time()) - 100)
        for _ in range(3):
            assert (await post(url, body, headers=headers))[0] == 200
        assert len(up.services.deliveries) == 1
        assert (await post(url, body))[0] == 200
        assert len(up.services.accepted) == 1


async def test_a_replayed_command_is_not_run_again() -> None:
    """A slash command has no message; what was signed once works once."""
    async with called() as (up, url):
        payload = {"command": "/parlour", "text": "new", "user_id": ANN, "channel_id": DM, "trigger_id": "9.9"}
        body, content = encode("slash_commands", {**payload, "team_id": "T0HOME"})
        headers = sign(body)
        for _ in range(2):
            assert (await post(url, body, content, headers))[:2] == (200, "")
        assert len(up.services.deliveries) == 1


async def test_nothing_is_confirmed_that_is_not_stored() -> None:
    """503 while the journal is down, without a word that would keep Slack from trying again; then it is taken once."""
    async with called() as (up, url):
        up.server.ack_within = 0.02
        up.services.is_down = True
        status, _, headers = await post(url, event())
        assert status == 503
        assert "X-Slack-No-Retry" not in headers
        up.server.say(DM, ANN, "again and again")
        await up.services.wait_deliveries(3)
        up.services.is_down = False
        await up.server.until(lambda: len(up.server.acks) == 1)
        assert [message.text for message in up.services.accepted] == ["again and again"]


async def test_before_slack_knows_us_nothing_is_taken() -> None:
    """A channel that is not up yet, or any more, says 503: Slack keeps the event."""
    async with slack_server() as server:
        house_ = FakePageServices()
        channel = build(server, house_, **HTTP)
        web = WebServer("127.0.0.1", 0, plugin.routes(channel))
        await web.bind()
        serving = asyncio.create_task(web.serve())
        await web.wait_started()
        assert (await post(f"http://127.0.0.1:{web.port}/hooks/slack", event()))[0] == 503
        assert not channel.is_ready()
        assert house_.deliveries == []
        serving.cancel()
        await asyncio.wait({serving})
        await channel.close()


async def test_no_body_is_read_that_is_too_long() -> None:
    """A length beyond Slack's own is refused by its header, and a body without one when it grows too long."""
    async with called() as (up, url):
        large = b"x" * 600_000
        assert (await post(url, large))[0] == 413
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2].partition("/")[0]))
        head = "".join(f"{name}: {value}\r\n" for name, value in sign(b"").items())
        writer.write(
            f"POST /hooks/slack HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}Content-Length: 90000000\r\n\r\n".encode()
        )
        assert b"413" in await reader.readline()  # not a byte of the body was sent
        writer.close()
        assert up.services.deliveries == []


UNREADABLE = [
    (b"{", "application/json", 400),
    (b"[]", "application/json", 400),
    (b"payload=%7B", FORM, 400),
    (b"[" * 100_000, "application/json", 400),
    (b"ssl_check=1&token=x", FORM, 200),
    (b'{"type": "event_callback", "event_id": "Ev9", "event": {"type": "message"}}', "application/json", 200),
]


async def test_what_cannot_be_read_is_an_end() -> None:
    """Signed, and yet no event: refused, or set aside and confirmed; never a crash, never asked for again and again."""
    async with called() as (up, url):
        for body, content, status in UNREADABLE:
            assert (await post(url, body, content))[0] == status
        assert up.services.accepted == []
        assert list(up.services.quarantined) == ["Ev9"]


async def test_a_page_of_somebody_else_cannot_post_there() -> None:
    """A browser names the page that posts; the door turns it away whatever it signed. GET is nobody's."""
    async with called() as (_, url):
        body = event()
        assert (await post(url, body, headers={**sign(body), "Origin": "https://evil.example"}))[0] == 403


async def test_the_whole_gateway_by_http() -> None:
    """Through the real web server: asked and answered, delivered twice and answered once, after a restart too."""
    environment = {
        "PARLOUR_CHANNELS__SLACK__APP_TOKEN": "",  # taken away
        "PARLOUR_CHANNELS__SLACK__SIGNING_SECRET": SIGNING_SECRET,
    }
    async with slack_server() as server, open_gateway(server, environment=environment) as parlour:
        await server.until(lambda: bool(server.called("auth.test")))
        server.ack_within, server.hook = 0.05, f"{parlour.app.web.url}hooks/slack"
        ts = server.say(ROOM, ANN, f"{CALL} hello")
        await server.until(lambda: bool(server.shown(ROOM, ts)))
        server.tell(ROOM, server._message(ROOM, ts))
        await server.until(lambda: len(server.acks) == 4)
        await parlour.idle()
        assert len(server.shown(ROOM, ts)) == 1
