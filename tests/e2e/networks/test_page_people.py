"""Several people on one page: each a chat, a memory and a role of their own; the owner alone is this machine's."""

from __future__ import annotations

import asyncio
import json
import secrets
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.app.channels import forget_page_users
from gateway.errors import UserError
from gateway.events import SessionKey
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway

PAGE = {"PARLOUR_WEB__LOGIN": "always"}


@dataclass
class PageClient:
    """Somebody's window, over the wire."""

    socket: aiohttp.ClientWebSocketResponse

    async def say(self, text: str) -> str:
        """Say *text*; return what is answered, or why it is not taken."""
        await self.socket.send_json({"type": "say", "id": secrets.token_hex(8), "text": text, "files": []})
        while True:
            frame = await self.socket.receive_json()
            if frame["type"] == "message" and frame["last"]:
                return str(frame["text"])
            if frame["type"] == "rejected":
                return str(frame["line"])

    async def history(self) -> list[str]:
        """Return what stands in the window's chat."""
        await self.socket.send_json({"type": "look"})
        while (frame := await self.socket.receive_json())["type"] != "history":
            continue
        return [str(line["text"]) for line in frame["lines"]]


async def ask(up: InProcessGateway, operation: str, **arguments: str) -> list[dict[str, Any]]:
    """Ask as the command line does."""
    return [dict(line) async for line in up.app.operations[operation](arguments)]


@asynccontextmanager
async def on_the_page(up: InProcessGateway, name: str = "") -> AsyncIterator[PageClient]:
    """Log in with a code for *name*, "" being the owner, and open a window."""
    (issued,) = await ask(up, "web login", **({"as": name} if name else {}))
    url = up.app.web.url
    origin = {"Origin": url.rstrip("/")}
    async with aiohttp.ClientSession(headers=origin, cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        async with session.post(f"{url}login", json={"code": issued["code"]}) as got:
            assert got.status == 204
        async with session.get(f"{url}session") as got:
            assert (await got.json())["who"] == (name or "owner")
        async with session.ws_connect(f"{url}ws") as socket:
            assert (await socket.receive_json())["type"] == "history"
            yield PageClient(socket)


async def test_each_has_a_chat_and_a_memory_of_their_own() -> None:
    """What Ann says and has remembered is in her scope, and neither the owner nor Ben sees any of it."""
    async with gateway(model=InstantModel(), environment=PAGE) as up:
        async with on_the_page(up) as owner, on_the_page(up, "ann") as ann, on_the_page(up, "ben") as ben:
            assert "cellar" in await ann.say("the cellar key hangs behind the clock")
            await ann.say("/remember the cellar key hangs behind the clock")
            for other in (owner, ben):
                assert not any("cellar" in line for line in await other.history())
                assert "cellar" not in await other.say("/memory show")
            assert "cellar" in await ann.say("/memory show")
            await up.idle()
        keys = {str(session.key) for session in await up.app.memory.sessions.all()}
        assert {"web:ann", "web:ben", "web:owner"} <= keys
        scopes = {row.scope for row in await up.app.store.records.sessions() if str(row.key) == "web:ann"}
        assert scopes == {"people/web%3aann"}


async def test_who_is_not_the_owner_decides_about_their_own_chat_alone() -> None:
    """Ann's `/new` works, an owner's command is refused with a line; Eve is an owner because the settings say so."""
    async with gateway(model=InstantModel(), environment={**PAGE, "PARLOUR_OWNERS": "web:eve"}) as up:
        async with on_the_page(up) as owner, on_the_page(up, "ann") as ann, on_the_page(up, "eve") as eve:
            refused = await ann.say("/allow web:user501")
            assert not await _is_allowed(up)
            assert refused != await eve.say("/allow web:user501")
            assert await ann.say("/new")
            assert await owner.say("/status")
        assert await _is_allowed(up)


async def test_caps_that_are_set_hold_for_people_on_the_page() -> None:
    """One turn in ten minutes: the second is refused with a line, and the owner's is not the same purse."""
    caps = {**PAGE, "PARLOUR_CAPS__PERSON_TURNS_PER_10_MIN": "1"}
    async with (
        gateway(model=InstantModel(), environment=caps) as up,
        on_the_page(up, "ann") as ann,
        on_the_page(up, "ben") as ben,
    ):
        assert "first" in await ann.say("first words")
        assert "second" not in await ann.say("second words")
        assert "third" in await ben.say("third words")


async def test_a_login_that_is_ended_closes_what_is_open() -> None:
    """Ann's window goes at once and her cookie is worth nothing; nobody else notices; nobody is no name."""
    async with gateway(model=InstantModel(), environment=PAGE) as up:
        async with on_the_page(up) as owner, on_the_page(up, "ann") as ann:
            assert [line["who"] for line in await ask(up, "web logins") if line["browsers"]] == ["ann", "owner"]
            assert await ask(up, "web logout", who="ann") == [{"who": "ann", "browsers": 1}]
            async with asyncio.timeout(60):
                while (await ann.socket.receive()).type is not aiohttp.WSMsgType.CLOSE:
                    continue
            assert [line["who"] for line in await ask(up, "web logins") if line["browsers"]] == ["owner"]
            assert await owner.say("still here")
        for wrong in ("ann", "", "nobody"):
            with pytest.raises(UserError):
                await ask(up, "web logout", who=wrong)
        for wrong in ("owner", "Ann", "a/b"):
            with pytest.raises(UserError):
                await ask(up, "web login", **{"as": wrong})


async def test_shared_links_end_with_the_access_of_their_person(tmp_path: Path) -> None:
    """A block suspends them; a logout by an operator and erasure remove them; an export lists them without secrets."""
    async with gateway(model=InstantModel(), environment=PAGE) as up:
        async with on_the_page(up, "ann") as ann:
            await ann.say("roses")
        (*_, last) = await up.app.memory.sessions.displayed_messages(SessionKey("web", "ann"), limit=5)
        links = up.app.chat_pages[0].links
        _, token = await links.create("ann", "main", last.turn, 7)

        async def status() -> int:
            async with aiohttp.ClientSession() as http, http.get(f"{up.app.web.url}share/{token}") as answer:
                return answer.status

        assert await status() == 200
        await ask(up, "people block", who="web:ann")
        assert await status() == 404
        await ask(up, "people allow", who="web:ann")
        assert await status() == 200
        exports = up.app.commands.privacy.exports
        await exports.write("people/web%3aann", "web%3aann", tmp_path / "e.zip")
        with zipfile.ZipFile(tmp_path / "e.zip") as archive:
            (listed,) = map(json.loads, archive.read("shared_links.jsonl").splitlines())
        assert (listed["account"], listed["conversation"]) == ("web%3aann", "main")
        assert token not in json.dumps(listed)
        await ask(up, "web logout", who="ann")
        assert await status() == 404
        _, token = await links.create("ann", "main", last.turn, 7)
        async with on_the_page(up, "ann") as ann:
            pass
        assert await status() == 200
        await forget_page_users(up.app, {"web%3aann"})
        assert (await status(), list(await links.of_person("ann"))) == (404, [])


async def test_the_link_has_the_code_where_no_server_sees_it() -> None:
    """Behind the `#` of the public address, path and all; none without one."""
    async with gateway(model=InstantModel(), environment=PAGE) as up:
        assert (await ask(up, "web login"))[0]["link"] == ""
    public = {"PARLOUR_WEB__PUBLIC_URL": "https://chat.example.org/chat"}
    async with gateway(model=InstantModel(), environment=public) as up:
        (issued,) = await ask(up, "web login", **{"as": "ann"})
        assert issued["link"] == f"https://chat.example.org/chat/#code={issued['code']}"


async def _is_allowed(up: InProcessGateway) -> bool:
    return "user501" in json.dumps([str(line) for line in await ask(up, "people list")])
