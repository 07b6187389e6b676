"""Every route of the page, the console and the server, as each role: docs/console.md has a row for each."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from starlette.routing import Route, WebSocketRoute

from gateway.control.registry import console_operations
from gateway.events import SessionKey
from tests.fakes.console_people import LOGINS, AdministeredChannel, ConsolePeople, console_people

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE = Path(__file__).parents[2] / "docs" / "console.md"
# One real value for each part of an address, so that a refusal is a refusal and no 404 of another kind.
PARTS = {"/assets/{name:path}": "/assets/app.js", "/console/assets/{name}": "/console/assets/console.js"}
BODIES = {"/login": {"code": "AAAA-AAAA"}, "/conversations/{id}": {"action": "pin"}}
ARGUMENTS = {"who": "pocket:nobody", "chat": "pocket:room", "limit": 5, "by": "day", "offline": True}
LAST = ("/login", "/logout")  # which end what the others need


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def people() -> AsyncIterator[ConsolePeople]:
    """Run a gateway with a browser for each role."""
    async with console_people() as people:
        yield people


async def test_every_operation_is_offered_or_kept_back_on_purpose(people: ConsolePeople) -> None:
    """What a browser may call are operations that exist; what needs the machine's own files is none of them."""
    operations = people.up.app.operations
    assert console_operations().keys() <= operations.keys()
    assert (
        not {"people forget", "people export", "send", "web login", "prune", "memory forget"}
        & console_operations().keys()
    )
    assert not any("file" in rule.console or "path" in rule.console for rule in console_operations().values())


async def test_another_page_cannot_act_for_an_owner(people: ConsolePeople) -> None:
    """A form on a foreign page sends its own origin, or none, with the owner's cookie: nothing is done."""
    url = f"{people.url}console/v1/people/allow"
    for headers in ({}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
        async with people.clients["owner"].post(url, json={"who": "pocket:evil"}, headers=headers) as answer:
            assert answer.status == 403
    assert "evil" not in (await people.call("owner", "people list"))[1]


async def test_what_is_done_stands_in_the_audit_under_the_owner_s_name(people: ConsolePeople) -> None:
    """A decision names who made it at the page, not the operator; one that was refused is not made."""
    assert await people.call("owner", "people allow", who="pocket:carl") == (
        200,
        '{"line": {"whom": "pocket:carl", "ruling": "done"}}\n',
    )
    assert (await people.call("admin of the chat", "people allow", who="pocket:mallory"))[0] == 403
    (newest, *_) = [json.loads(line)["line"] for line in (await people.call("owner", "people audit"))[1].splitlines()]
    assert (newest["by"], newest["what"], newest["whom"]) == ("web:owner", "allow", "pocket:carl")


async def test_arguments_that_an_operation_does_not_offer_are_refused(people: ConsolePeople) -> None:
    """Too long, no JSON object, or an argument that only the command line has."""
    assert (await people.call("owner", "status", file="/etc/passwd"))[0] == 400
    address = f"{people.url}console/v1/status"
    for body, expected in (("[]", 400), ("{", 400), ("[" * 100_000, 400), ("x" * 1_000_001, 413)):
        async with people.clients["owner"].post(address, data=body, headers=people.origin) as answer:
            assert answer.status == expected


async def test_a_right_that_is_taken_away_ends_at_once(people: ConsolePeople) -> None:
    """An admin whom the platform demotes has nothing at the next call; a login that is ended neither."""
    platform = people.up.channel
    assert isinstance(platform, AdministeredChannel)
    session = f"{people.url}console/session"
    async with people.clients["admin of another chat"].get(session) as answer:
        assert await answer.json() == {"who": "web:eve", "role": "admin", "chats": ["pocket:other"]}
    del platform.admins["other"]
    async with people.clients["admin of another chat"].get(session) as answer:
        assert (answer.status, (await answer.json())["role"]) == (403, "nobody")
    platform.admins["other"] = "eve"


async def test_the_check_of_an_admin_reads_their_chat_alone(
    people: ConsolePeople, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One look for the chat a call, however many sessions there are; the list of all sessions is not read."""
    records, looks = people.up.app.store.records, []
    has_session = records.has_session

    async def count(chat: SessionKey, scope: str) -> bool:
        looks.append(str(chat))
        return await has_session(chat, scope)

    async def refuse() -> None:
        raise AssertionError("all sessions are read")

    monkeypatch.setattr(records, "has_session", count)
    monkeypatch.setattr(records, "sessions", refuse)
    assert (await people.call("admin of the chat", "memory log", chat="pocket:other", limit=5))[0] == 403
    assert (await people.call("admin of the chat", "memory log", chat="pocket:nowhere", limit=5))[0] == 403
    assert (await people.call("admin of the chat", "memory log", chat="pocket:room/1", limit=5))[0] == 403
    assert (await people.call("admin of the chat", "turns find", chat="pocket:room", limit=5))[0] == 200
    assert looks == ["pocket:other", "pocket:nowhere", "pocket:room", "pocket:room"]  # the last for the search itself


async def test_a_refused_socket_is_no_error_in_the_log(people: ConsolePeople, caplog: pytest.LogCaptureFixture) -> None:
    """A browser whose login has ended asks for its socket again and again; each time it gets its answer."""
    assert await status(people, "no login", "WS", "/ws") == 401
    assert (await people.call("no login", "status"))[0] == 401
    assert "handshake" not in caplog.text


async def test_every_route_has_its_row_of_roles(people: ConsolePeople) -> None:
    """The statuses that each role gets are those of the page of the docs: a new route without a row fails here.

    The last test of the module: it ends with the logout of everybody.
    """
    routes = [each for each in people.up.app.web.app.routes if isinstance(each, Route | WebSocketRoute)]
    assert len(routes) == len(people.up.app.web.app.routes)
    rows = [await row(people, each) for each in sorted(routes, key=lambda each: each.path in LAST)]
    documented = re.findall(r"^\| `(?:GET|POST|WS) .*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(documented) == sorted(rows), "docs/console.md must have exactly these rows:\n" + "\n".join(
        sorted(rows)
    )


async def row(people: ConsolePeople, route: Route | WebSocketRoute) -> str:
    """Return the row of a route: its method, its address and the status that each role gets."""
    method = "WS" if isinstance(route, WebSocketRoute) else min((route.methods or set()) - {"HEAD"})
    found = [str(await status(people, role, method, route.path)) for role in LOGINS]
    return f"| `{method} {route.path}` | {' | '.join(found)} |"


async def status(people: ConsolePeople, role: str, method: str, path: str) -> int:
    """Ask as *role*, as a browser on the page does."""
    address = people.url.rstrip("/") + re.sub(r"\{.*?\}", "main", PARTS.get(path, path))
    client = people.clients[role]
    if method == "WS":
        try:
            async with client.ws_connect(address, headers=people.origin):
                return 101
        except aiohttp.WSServerHandshakeError as refused:
            return refused.status
    name = path.removeprefix("/console/v1/").replace("/", " ")
    rule = console_operations().get(name)
    body = {each: ARGUMENTS[each] for each in rule.console & ARGUMENTS.keys()} if rule else BODIES.get(path, {})
    async with client.request(
        method, address, json=body if method == "POST" else None, headers=people.origin, allow_redirects=False
    ) as answer:
        await answer.read()
        return answer.status
