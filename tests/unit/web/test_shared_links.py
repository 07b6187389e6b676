"""Links to conversations: what their page shows, what they cost, and that nothing of them is left behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from channels.kit.background import ChatRateLimits
from channels.web import plugin as web_kind
from channels.web.adapter import READ_INTERVAL, READS_AT_ONCE, WebChannel, WebVisitor
from channels.web.conversation_documents import MOST_LATER_TURNS, read_conversation
from channels.web.routes import create_link, show_shared
from channels.web.shared_links import LONGEST_SHARED, MOST_LINKS, SHARED_HEADERS, SharedLinks, latest_messages
from gateway.errors import UserError
from gateway.events import SessionKey
from gateway.ports.channel import ConversationInfo, DisplayedMessage, DisplayedPage
from gateway.store.engine import StoreLimits
from gateway.store.sqlite import open_file
from tests.fakes.clock import EPOCH
from tests.fakes.web_services import FakePageServices, FakeState

ANN = SessionKey("web", "ann")


class OneConversation:
    """Each person has the first conversation alone."""

    def watch(self, watcher: Callable[[SessionKey], None]) -> None:
        """Give no title later."""

    async def list_conversations(self, chat: SessionKey) -> Sequence[ConversationInfo]:
        """Return it."""
        return (ConversationInfo(key=chat, title="Roses", used_at=EPOCH),)


@dataclass
class PagedServices(FakePageServices):
    """A gateway with a long conversation, each line of which is a turn, which counts how many of them are read."""

    read: int = 0
    readable: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.readable.set()

    async def displayed_page(self, key: SessionKey, before: str = "", *, turns: int) -> DisplayedPage | None:
        """Return the *turns* lines before a position."""
        self.asked.set()
        await self.readable.wait()
        end = int(before) if before else len(self.lines)
        start = max(0, end - turns)
        self.read += end - start
        return DisplayedPage(tuple(self.lines[start:end]), str(start) if start else "")


def line(turn: str, text: str, *, role: str = "user", **facts: Any) -> DisplayedMessage:
    """Return a line of a conversation."""
    typed = text if role == "user" else ""
    return DisplayedMessage(id=f"{turn}/0", turn=turn, role=role, text=text, at=EPOCH, typed=typed, **facts)


def page_of(services: FakePageServices, *, has_lost_access: Callable[[str], bool] | None = None) -> WebChannel:
    """Return the page of *services*."""
    context = replace(
        services.context("web"),
        conversations=OneConversation(),  # type: ignore[arg-type]  # as much of one as is asked
        has_lost_access=has_lost_access,
    )
    channel = web_kind.open(context)
    assert isinstance(channel, WebChannel)
    return channel


def ask(body: bytes = b"", **params: str) -> Request:
    """Return a request from somewhere."""

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body}

    scope = {"type": "http", "method": "GET", "headers": [], "path_params": params, "state": {"address": "203.0.113.5"}}
    return Request(scope, receive)


async def share(channel: WebChannel) -> str:
    """Share Ann's conversation as the page does; return the token."""
    answer = await create_link(channel, WebVisitor("ann"), ask(b'{"days": 7}', id="main"))
    assert answer.status_code == 200
    return str(json.loads(bytes(answer.body))["address"]).removeprefix("share/")


async def read(channel: WebChannel, token: str) -> Response:
    """Read the page of a link."""
    return await show_shared(channel, ask(token=token))


async def test_refused_readings_do_not_lock_a_network_out() -> None:
    """A thousand at once are refused, and two seconds later the next one is served."""
    channel, now = page_of(PagedServices()), 1_000.0
    channel.reader_paces = ChatRateLimits(READS_AT_ONCE, lambda _: READ_INTERVAL, clock=lambda: now)
    statuses = [each.status_code for each in await asyncio.gather(*(read(channel, "x") for _ in range(1_000)))]
    assert (statuses.count(404), statuses.count(429)) == (READS_AT_ONCE, 1_000 - READS_AT_ONCE)
    now += READ_INTERVAL
    assert [(await read(channel, "x")).status_code for _ in range(2)] == [404, 429]


def test_the_answer_of_a_replaced_version_is_not_shown() -> None:
    """A message that is edited while its answer runs stands before that answer."""
    lines = [
        line("t0", "hello", message_id="m0"),
        line("t0", "hi", role="assistant"),
        line("t1", "first", message_id="m1"),
        line("t2", "second", message_id="m2", replaces="m1"),
        line("t1", "answer to the first", role="assistant"),
        line("t2", "answer to the second", role="assistant"),
    ]
    assert [each.text for each in latest_messages(lines)] == ["hello", "hi", "second", "answer to the second"]
    shown = latest_messages([*lines[4:5], *lines[3:4], *lines[5:]], is_cut=True)  # the first version is cut off
    assert [each.text for each in shown] == ["second", "answer to the second"]


async def test_links_are_forgotten_with_their_person_and_their_time() -> None:
    """Erasing a person, or all, leaves nothing in the notes; nor does a list or a new link, of what has expired."""
    services = PagedServices()
    channel, now = page_of(services), EPOCH
    channel.links = SharedLinks(services.state, now=lambda: now)
    for who in ("ann", "ben", "eve"):
        await channel.links.create(who, "main", "t1", 1)
    await channel.forget({"ann"})
    assert sorted(each["who"] for each in notes(services.state)) == ["ben", "eve"]
    now += timedelta(days=1)
    assert list(await channel.links.of_person("ben")) == []
    assert [each["who"] for each in notes(services.state)] == ["eve"]
    await channel.links.create("eve", "main", "t2", 1)
    assert [each["turn"] for each in notes(services.state)] == ["t2"]
    await channel.forget(None)
    assert notes(services.state) == []


def notes(state: FakeState) -> list[dict[str, str]]:
    """Return the links that are stored."""
    return [link for name, value in state.notes.items() if name.startswith("links.") for link in json.loads(value)]


async def test_a_press_is_not_the_last_turn_of_a_link() -> None:
    """After *Stop*, whose press stands last, a link shows what was said before."""
    lines = [line("t1", "roses"), line("t1", "red", role="assistant"), line("t2", "/stop", is_press=True)]
    channel = page_of(PagedServices(lines=lines))
    answer = await read(channel, await share(channel))
    assert answer.status_code == 200
    assert b"roses" in bytes(answer.body)
    assert b"/stop" not in bytes(answer.body)


async def test_a_page_is_never_longer_than_it_may_be() -> None:
    """The oldest messages are left out, also those of the page of the history that has the newest."""
    services = PagedServices(lines=[line(f"t{n}", str(n % 10) * 30_000) for n in range(40)])
    found = await read_conversation(services, ANN, "", until="t37", longest=LONGEST_SHARED)
    assert sum(len(each.text) for each in found.lines) <= LONGEST_SHARED
    assert ([each.turn for each in found.lines], found.is_cut) == ([f"t{n}" for n in range(32, 38)], True)
    assert (await read_conversation(services, ANN, "", longest=40 * 30_000)).is_cut is False


async def test_readers_take_no_place_of_exports() -> None:
    """While links are read, everybody can save a conversation; and of readers, one is served at a time."""
    services = PagedServices(lines=[line("t1", "roses")])
    channel = page_of(services)
    token = await share(channel)
    services.readable.clear()
    services.asked.clear()
    readings = [asyncio.create_task(read(channel, token), name="reader") for _ in range(READS_AT_ONCE)]
    await services.asked.wait()
    assert channel.documents.busy("") == 0
    services.readable.set()
    statuses = {each.status_code for each in await asyncio.gather(*readings)}
    assert statuses == {200, 503}


def test_what_a_shared_page_opens_is_an_ordinary_page() -> None:
    """Its links open pages that are not sandboxed, and browsers take the sandboxed page itself."""
    (sandbox,) = (each for each in SHARED_HEADERS["Content-Security-Policy"].split("; ") if each.startswith("sandbox"))
    assert sandbox.split() == ["sandbox", "allow-popups", "allow-popups-to-escape-sandbox"]
    assert SHARED_HEADERS["Cross-Origin-Opener-Policy"] == "unsafe-none"


async def test_no_more_links_than_allowed_are_made_at_once(tmp_path: Path) -> None:
    """A hundred requests at the same time make `MOST_LINKS`, each of which can be read and withdrawn."""
    store = await open_file(tmp_path / "journal.db", StoreLimits())
    links = SharedLinks(store.state("web"))
    made = await asyncio.gather(
        *(links.create("ann", "main", "t1", 7) for _ in range(2 * MOST_LINKS)), return_exceptions=True
    )
    tokens = [each[1] for each in made if isinstance(each, tuple)]
    assert (len(tokens), len(await links.of_person("ann"))) == (MOST_LINKS, MOST_LINKS)
    assert all(isinstance(each, UserError) for each in made if not isinstance(each, tuple))
    found = await links.find(tokens[0])
    assert found is not None
    withdrawn = await asyncio.gather(*(links.withdraw("ann", found.id) for _ in range(3)))
    assert sorted(withdrawn) == [False, False, True]
    assert await links.find(tokens[0]) is None
    assert await links.find(tokens[1]) is not None
    await store.close()


async def test_a_link_whose_last_turn_is_gone_costs_little() -> None:
    """The search for the turn ends after `MOST_LATER_TURNS`; a turn that far back is still found."""
    services = PagedServices(lines=[line(f"t{n}", "roses") for n in range(5 * MOST_LATER_TURNS)])
    gone = await read_conversation(services, ANN, "", until="erased", longest=LONGEST_SHARED)
    assert (list(gone.lines), services.read) == ([], MOST_LATER_TURNS)
    last = f"t{4 * MOST_LATER_TURNS}"
    found = await read_conversation(services, ANN, "", until=last, longest=LONGEST_SHARED)
    assert found.lines[-1].turn == last


@pytest.mark.parametrize("has_lost", [True, False])
async def test_links_of_a_person_who_lost_access_are_unknown(*, has_lost: bool) -> None:
    """The same answer as for any other link that does not exist; access that is given back brings them back."""
    lost: set[str] = set()
    channel = page_of(PagedServices(lines=[line("t1", "roses")]), has_lost_access=lost.__contains__)
    token = await share(channel)
    lost.add("ann" if has_lost else "ben")
    answer, unknown = await read(channel, token), await read(channel, "x")
    assert answer.status_code == (404 if has_lost else 200)
    assert (bytes(answer.body) == bytes(unknown.body)) is has_lost
