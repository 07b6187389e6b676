"""Conversations of people on the page, over the wire before the whole gateway."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import agent.memory.conversations as stored_conversations
from agent.llm.chat_model import ChatReply, ChatRequest, Sink
from agent.memory.conversations import DELETE_CONVERSATION, StoredConversations
from agent.memory.erasure.scope_files import SCRUB
from agent.memory.prompt.due_jobs import APPLY, UPDATE
from agent.tasks.task import Task, TaskState
from channels.web.adapter import WebChannel
from channels.web.routes import LONGEST_CHANGE, LONGEST_QUERY, MOST_HITS
from gateway.events import PlatformAccount, SessionKey
from gateway.i18n import translate
from gateway.ports.channel import LONGEST_TITLE
from gateway.ports.journal import Job
from gateway.ports.memory import FileKind
from gateway.store.engine import utc_now
from tests.fakes.held_model import HeldScriptModel, title_soon
from tests.fakes.inprocess_gateway import InProcessGateway, InstantModel, gateway
from tests.fakes.staged_changes import erase
from tests.fakes.stored_files import stored_files

PAGE = {"PARLOUR_WEB__LOGIN": "always"}
GARDEN, CELLAR = "garden2345678901", "cellar2345678901"


@dataclass
class Visitor:
    """A browser that is logged in."""

    session: aiohttp.ClientSession
    url: str

    @asynccontextmanager
    async def window(self, conversation: str = "main") -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open a conversation."""
        async with self.session.ws_connect(f"{self.url}ws?conversation={conversation}") as socket:
            yield socket

    async def say(self, text: str, conversation: str = "main", *files: bytes) -> str:
        """Say *text* in a conversation, with files; return what is answered, or why it is not taken."""
        tokens = [await self.upload(each) for each in files]
        async with self.window(conversation) as socket:
            await socket.send_json({"type": "say", "id": secrets.token_hex(8), "text": text, "files": tokens})
            while True:
                frame = await socket.receive_json()
                if frame["type"] == "message" and frame["last"]:
                    commands = [button["command"] for row in frame["buttons"] for button in row]
                    return "\n".join([str(frame["text"]), *commands])
                if frame["type"] == "rejected":
                    return str(frame["line"])

    async def upload(self, data: bytes) -> str:
        headers = {"X-File-Name": "notes.txt", "Content-Type": "text/plain"}
        async with self.session.post(f"{self.url}files", data=data, headers=headers) as got:
            return str((await got.json())["token"])

    async def history(self, conversation: str = "main") -> list[str]:
        """Return the texts of a conversation; a divider is "-"."""
        async with self.window(conversation) as socket:
            frame = await socket.receive_json()
            assert frame["type"] == "history"
            return ["-" if line["role"] == "divider" else str(line["text"]) for line in frame["lines"]]

    async def listed(self, *, deleted: bool = False) -> dict[str, str]:
        """Return the titles of the listed conversations by id, in their order."""
        async with self.session.get(f"{self.url}conversations") as got:
            found = (await got.json())["conversations"]
        return {each["id"]: each["title"] for each in found if each["deleted"] is deleted}

    async def change(self, conversation: str, change: Any) -> int:
        """Change a conversation; return the status."""
        async with self.session.post(f"{self.url}conversations/{conversation}", json=change) as got:
            return got.status

    async def search(self, query: str) -> list[tuple[str, str]]:
        """Return the conversation and excerpt of each hit."""
        async with self.session.get(f"{self.url}search", params={"q": query}) as got:
            assert got.status == 200
            return [(each["conversation"], each["text"]) for each in (await got.json())["hits"]]


@asynccontextmanager
async def visit(up: InProcessGateway, name: str = "") -> AsyncIterator[Visitor]:
    """Log in as *name*, "" being the owner."""
    arguments = {"as": name} if name else {}
    (issued,) = [dict(line) async for line in up.app.operations["web login"](arguments)]
    url = up.app.web.url
    origin = {"Origin": url.rstrip("/")}
    async with aiohttp.ClientSession(headers=origin, cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        async with session.post(f"{url}login", json={"code": issued["code"]}) as got:
            assert got.status == 204
        yield Visitor(session, url)


async def wait_jobs(up: InProcessGateway, kind: str, *, left: int = 0) -> None:
    """Return when *left* jobs of a kind are left."""
    async with asyncio.timeout(60):
        while len(await up.app.store.jobs.pending_of(kind)) > left:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.01)


async def test_each_conversation_has_a_history_and_all_share_the_memory() -> None:
    """What is said in one is not in another; what is remembered in one is known in all; `/new` divides one alone."""
    async with gateway(model=InstantModel(), environment=PAGE) as up, visit(up, "ann") as ann:
        await ann.say("the roses need water", GARDEN)
        await ann.say("/remember the cellar key hangs behind the clock", CELLAR)
        await ann.say("which wine?", CELLAR)
        assert await ann.say("/new", CELLAR)
        assert "the roses need water" in await ann.history(GARDEN)
        assert "-" not in await ann.history(GARDEN)
        cellar = await ann.history(CELLAR)
        assert cellar.index("which wine?") < cellar.index("/new") < cellar.index("-") == len(cellar) - 1
        assert await ann.history() == []
        assert "behind the clock" in await ann.say("/memory show", GARDEN)
        scopes = {str(row.key): row.scope for row in await up.app.store.records.sessions()}
        assert scopes == {f"web:ann/{GARDEN}": "people/web%3aann", f"web:ann/{CELLAR}": "people/web%3aann"}
        assert await ann.listed() == {GARDEN: "the roses need water", CELLAR: "which wine?"}


async def test_the_list_is_in_the_order_of_use_and_its_titles_are_what_people_say() -> None:
    """The first words, not a command; a name given by hand stays; a first conversation of earlier versions is there."""
    async with gateway(model=InstantModel(), environment=PAGE) as up, visit(up, "ann") as ann:
        await ann.say("/help", GARDEN)
        assert await ann.listed() == {GARDEN: ""}
        long = "a question " * 20
        await ann.say(long, GARDEN)
        title = (await ann.listed())[GARDEN]
        assert title.startswith("a question a question")
        assert title.endswith("…")
        assert len(title) <= LONGEST_TITLE
        await ann.say("what is in the cellar?", CELLAR)
        assert await ann.change(GARDEN, {"title": "  The <b>garden</b> "}) == 204
        await ann.say("more of the garden", GARDEN)
        assert list((await ann.listed()).items()) == [(GARDEN, "The <b>garden</b>"), (CELLAR, "what is in the cellar?")]
        await up.app.store.people.prefer("web:ann", f"conversation/{CELLAR}", "")
        assert (await ann.listed())[CELLAR] == ""
        assert await ann.change(CELLAR, {"pinned": True}) == 204


class TitleModel(InstantModel):
    """Answers at once, and names conversations as the test says; its request for a title is kept."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self.title = title
        self.asked: list[ChatRequest] = []
        self.before_title: Callable[[], Awaitable[None]] | None = None

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Answer, or name the conversation."""
        reply = await super().complete(request, sink=sink)
        if request.purpose != "title":
            return reply
        self.asked.append(request)
        if self.before_title is not None:
            await self.before_title()
        return replace(reply, text=self.title, tool_calls=())


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ('**"Watering <b>roses</b>"**\nand more', "Watering <b>roses</b>"),
        ("rose " * 10_000, f"{'rose ' * 14}rose…"),
        ("/forget everything", "the roses need water"),
        ("\u202e\x1b \n", "the roses need water"),
        ("", "the roses need water"),
    ],
)
async def test_a_model_names_a_conversation(answer: str, title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, after the first answer: one short line as plain text; what is no title leaves the first message."""
    title_soon(monkeypatch)
    model = TitleModel(answer)
    async with gateway(model=model, environment=PAGE) as up, visit(up, "ann") as ann:
        await ann.say("the roses need water", GARDEN)
        await wait_jobs(up, UPDATE)
        await wait_jobs(up, APPLY)
        assert await ann.listed() == {GARDEN: title}
        assert "the roses need water" in str(model.asked[-1].messages)
        assert model.asked[-1].chat == f"web:ann/{GARDEN}"
        await ann.say("and the tulips", GARDEN)
        await up.idle()
        assert len(model.asked) == 1


async def test_a_title_that_a_person_gave_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given before the model was asked, it is not asked; given meanwhile, its answer is dropped."""
    title_soon(monkeypatch)
    model = TitleModel("Watering roses")
    async with gateway(model=model, environment=PAGE) as up, visit(up, "ann") as ann:

        async def rename() -> None:
            assert await ann.change(GARDEN, {"title": "My garden"}) == 204

        model.before_title = rename
        await ann.say("the roses need water", GARDEN)
        await wait_jobs(up, UPDATE)
        await wait_jobs(up, APPLY)
        assert await ann.listed() == {GARDEN: "My garden"}
        asked = len(model.asked)
        monkeypatch.setattr(stored_conversations, "TITLE_AFTER", timedelta(hours=1))
        await ann.say("a second one", CELLAR)
        assert await ann.change(CELLAR, {"title": "Second"}) == 204
        (job,) = await up.app.store.jobs.pending_of(UPDATE)
        assert await up.app.background.do(job) is None
        assert (await ann.listed())[CELLAR] == "Second"
        assert (asked, len(model.asked)) == (1, 1)


async def test_two_people_and_a_stranger() -> None:
    """On every route Ann's conversations are hers: Ben's ids are his own, and without a login nothing is said."""
    async with (
        gateway(model=InstantModel(), environment=PAGE) as up,
        visit(up, "ann") as ann,
        visit(up, "ben") as ben,
        aiohttp.ClientSession(headers={"Origin": up.app.web.url.rstrip("/")}) as stranger,
    ):
        await ann.say("the cellar key hangs behind the clock", CELLAR)
        assert await ben.history(CELLAR) == []
        assert await ben.listed() == {}
        assert await ben.search("cellar") == []
        for change in ({"title": "mine"}, {"pinned": True}, {"deleted": True}):
            assert await ben.change(CELLAR, change) == 404
        await ben.say("not yours", CELLAR)  # an id of his own that happens to be the same
        assert await ann.search("yours") == []
        assert await ben.change(CELLAR, {"deleted": True}) == 204
        assert await ann.listed() == {CELLAR: "the cellar key hangs behind the clock"}
        assert [hit[0] for hit in await ann.search("CLOCK cellar")] == [CELLAR, CELLAR]  # and the answer
        url = up.app.web.url
        for method, path in (("GET", "conversations"), ("POST", f"conversations/{CELLAR}"), ("GET", "search?q=cellar")):
            async with stranger.request(method, f"{url}{path}", json={"deleted": True}) as got:
                assert (got.status, await got.json()) == (401, {})
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await stranger.ws_connect(f"{url}ws?conversation={CELLAR}")
        assert refused.value.status == 401


@pytest.mark.parametrize(
    "wrong", ["", "x", "UPPER23456789012", "../ann/cellar2345", "a" * 17, "ann%2Fcellar23456", "ü" * 16]
)
async def test_what_is_no_id_opens_nothing(wrong: str) -> None:
    """Neither as a conversation nor in a path."""
    async with gateway(model=InstantModel(), environment=PAGE) as up, visit(up, "ann") as ann:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await ann.session.ws_connect(f"{ann.url}ws?conversation={wrong}")
        assert refused.value.status == 404
        assert await ann.change(wrong or "%20", {"pinned": True}) == 404


async def test_changes_and_searches_are_bounded() -> None:
    """One known thing at a time, of its type and length; a long query is refused; hits have a limit, and say so."""
    async with gateway(model=InstantModel(), environment=PAGE) as up, visit(up, "ann") as ann:
        for n in range(MOST_HITS // 2 + 1):
            await ann.say(f"apple {n}", GARDEN)
        wrong: list[Any] = [
            {},
            [],
            "x",
            None,
            {"title": 1},
            {"pinned": "yes"},
            {"id": "x"},
            {"title": "a", "pinned": True},
        ]
        for change in wrong:
            assert await ann.change(GARDEN, change) == 400
        assert await ann.change(GARDEN, {"title": "x" * LONGEST_TITLE}) == 204
        assert await ann.change(GARDEN, {"title": "x" * (LONGEST_TITLE + 1)}) == 400
        assert await ann.change(GARDEN, {"title": "x" * LONGEST_CHANGE}) == 400
        async with ann.session.get(f"{ann.url}search", params={"q": "x" * (LONGEST_QUERY + 1)}) as got:
            assert got.status == 400
        async with ann.session.get(f"{ann.url}search", params={"q": "apple"}) as got:
            found = await got.json()
        assert (len(found["hits"]), found["partial"]) == (MOST_HITS, True)
        assert await ann.search("") == []


async def test_a_search_reads_everything_that_was_said_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of words, in any case and script, before and after `/new`, with signs that JSON writes otherwise."""
    async with gateway(model=InstantModel(), environment=PAGE) as up, visit(up, "ann") as ann:
        await ann.say('Der SCHLÜSSEL hängt "hinten" C:\\keys', GARDEN)
        await ann.say("/new", GARDEN)
        await ann.say("钥匙在钟后面", CELLAR)
        for query in ("schlüssel", "HÄNG", '"hinten"', "c:\\keys", "hinten schlüssel"):
            assert GARDEN in {hit[0] for hit in await ann.search(query)}
        assert {hit[0] for hit in await ann.search("钥匙")} == {CELLAR}
        assert await ann.search("schlüssel 钥匙") == []
        assert await ann.change(GARDEN, {"deleted": True}) == 204
        assert await ann.search("schlüssel") == []
        monkeypatch.setattr(stored_conversations, "_MOST_BYTES", 10)
        async with ann.session.get(f"{ann.url}search", params={"q": "钥匙"}) as got:
            found = await got.json()
        assert [hit["conversation"] for hit in found["hits"]] == [CELLAR, CELLAR]  # in the first turns that are read
        assert found["partial"]


async def test_a_conversation_too_many_is_refused_with_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are there go on; when one is erased there is room again."""
    monkeypatch.setattr(stored_conversations, "MOST_CONVERSATIONS", 2)
    async with gateway(model=InstantModel(), environment=PAGE) as up, visit(up, "ann") as ann:
        await ann.say("one", GARDEN)
        await ann.say("two", CELLAR)
        refused = await ann.say("three", "third23456789012")
        assert refused == translate("web.conversations_full", most=1_000)
        assert "again" in await ann.say("again", GARDEN)
        await up.app.store.people.prefer("web:ann", f"conversation/{CELLAR}", "")
        assert "three" in await ann.say("three", "third23456789012")


async def test_a_deleted_conversation_is_restored_within_a_day_and_erased_after_it(tmp_path: Path) -> None:
    """It takes no message, and a restoration brings all of it back. A day later no byte of the home has its words."""
    later = timedelta()
    home = tmp_path / "home"

    def now() -> Any:
        return utc_now() + later

    async with gateway(model=InstantModel(), environment=PAGE, home=home, now=now) as up, visit(up, "ann") as ann:
        await ann.say("the zanzibar plan", CELLAR, b"for zanzibar alone", b"a list of roses")
        await ann.say("the roses need water", GARDEN, b"a list of roses")
        assert await ann.change(CELLAR, {"deleted": True}) == 204
        assert list(await ann.listed()) == [GARDEN]
        assert list(await ann.listed(deleted=True)) == [CELLAR]
        assert await ann.say("still there?", CELLAR) == translate("web.conversation_deleted")
        assert await ann.change(CELLAR, {"deleted": False}) == 204
        assert await ann.listed(deleted=True) == {}
        assert "the zanzibar plan" in await ann.history(CELLAR)
        await ann.say("/new", CELLAR)
        await ann.say("zanzibar again", CELLAR)
        for state in (TaskState.WAITING, TaskState.DONE):
            task = Task(
                id=f"k{state}",
                key=SessionKey("web", f"ann/{CELLAR}"),
                by="ann",
                person="web%3aann",
                goal="look up zanzibar",
                set_at=now(),
                state=state,
                is_delivered=state.is_over,
            )
            await up.app.store.jobs.put(task.to_job("people/web%3aann"))
        later += timedelta(hours=1)
        assert await ann.change(CELLAR, {"deleted": True}) == 204
        await up.idle()
    later += timedelta(hours=23, minutes=30)  # a day after the first deletion, which was undone
    async with gateway(model=InstantModel(), environment=PAGE, home=home, now=now) as up, visit(up, "ann") as ann:
        await wait_jobs(up, DELETE_CONVERSATION, left=1)
        assert "zanzibar again" in await ann.history(CELLAR)
    later += timedelta(hours=1)
    async with gateway(model=InstantModel(), environment=PAGE, home=home, now=now) as up, visit(up, "ann") as ann:
        await wait_jobs(up, DELETE_CONVERSATION)
        await wait_jobs(up, SCRUB)
        assert await ann.listed(deleted=True) == {}
        assert await ann.history(CELLAR) == []
        assert "the roses need water" in await ann.history(GARDEN)
        await up.idle()
    left = [path for path in home.rglob("*") if path.is_file() and b"zanzibar" in path.read_bytes()]
    assert [path for path in left if not is_kept(path.relative_to(home))] == []
    assert list(stored_files(home, FileKind.ATTACHMENT).values()) == [b"a list of roses"]


def is_kept(path: Path) -> bool:
    """Return True for uploads, which go two days after they were sent, and for files that the person keeps."""
    return path.parts[0] == "uploads" or "files" in path.parts


async def test_what_is_sent_to_a_deleted_conversation_comes_in_the_main_one() -> None:
    """Restored if it is deleted too; a conversation that is in use, and a topic elsewhere, keep what is theirs."""
    async with gateway(model=InstantModel(), environment=PAGE) as up, visit(up, "ann") as ann:
        for conversation in (GARDEN, CELLAR, "main"):
            await ann.say("hello", conversation)
        channel = up.app.channels["web"]
        assert isinstance(channel, WebChannel)
        stored = channel.conversations
        assert isinstance(stored, StoredConversations)
        main, garden, cellar = (SessionKey("web", f"ann{each}") for each in ("", f"/{GARDEN}", f"/{CELLAR}"))
        topic = SessionKey("telegram", "-100/7")
        assert [await stored.open_for_notice(each) for each in (main, garden, topic)] == [main, garden, topic]
        await stored.delete(garden)
        await stored.drop([cellar])
        await stored.delete(main)
        assert [await stored.open_for_notice(each) for each in (garden, cellar)] == [main, main]
        assert not stored.is_deleted(main)


async def test_deletion_by_age_reaches_the_list() -> None:
    """A conversation whose messages are all older than the limit leaves no title behind."""
    async with gateway(model=InstantModel(), environment=PAGE) as up, visit(up, "ann") as ann:
        await ann.say("the zanzibar plan", CELLAR)
        await up.idle()
        retention = up.app.commands.erasure.retention
        storage = dataclasses.replace(retention.storage, now=lambda: utc_now() + timedelta(days=31))
        later = dataclasses.replace(retention, days=30, storage=storage)
        await later.expire(Job(id="x", kind="retention", scope="", payload={}, due_at=utc_now()))
        assert await ann.listed() == {}


async def test_forgetting_reaches_the_list() -> None:
    """`/forget` takes words out of titles, `/forget everything` all entries, and so does `parlour people forget`."""
    async with gateway(model=InstantModel(), environment=PAGE) as up, visit(up, "ann") as ann:
        await ann.say("the zanzibar plan", CELLAR)
        await ann.say("the roses need water", GARDEN)

        async def ask(_: str, text: str) -> str:
            return await ann.say(text, GARDEN)

        await erase(ask, "ann", "/forget zanzibar")
        titles = await ann.listed()
        assert "zanzibar" not in " ".join(titles.values())
        assert titles[GARDEN] == "the roses need water"
        await up.app.commands.erasure.scope_eraser.erase_person(PlatformAccount(kind="web", id="ann"))
        assert await ann.listed() == {}


async def test_another_version_of_a_message_keeps_its_files() -> None:
    """Over the wire of the page: the model reads the file with the new words; a reload shows it at both versions."""
    model = HeldScriptModel()
    async with gateway(model=model, environment=PAGE) as up, visit(up, "ann") as ann, ann.window() as socket:
        token = await ann.upload(b"the roses need water")
        said = {"type": "say", "id": "version-1", "text": "read", "files": [token]}
        for frame in (said, {"type": "say", "id": "version-2", "text": "", "replaces": "version-1"}):
            await socket.send_json(frame)
            while (await socket.receive_json())["type"] != "message":
                pass
        assert "the roses need water" in str(model.asked[1].messages[-1]["content"])
        assert [message["role"] for message in model.asked[1].messages] == ["system", "user"]
        await up.idle()
        await socket.send_json({"type": "look"})
        history: dict[str, Any] = {"type": ""}
        while history["type"] != "history":
            history = await socket.receive_json()
        mine = [line for line in history["lines"] if line["role"] == "user"]
        assert [(line["message"], line.get("replaces")) for line in mine] == [
            ("version-1", None),
            ("version-2", "version-1"),
        ]
        assert [file["name"] for line in mine for file in line["files"]] == ["notes.txt"] * 2
        await socket.send_json({"type": "say", "id": "version-3", "text": "x", "replaces": "x" * 129})
        assert (await socket.receive_json())["type"] == "trouble"
