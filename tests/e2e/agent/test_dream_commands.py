"""Dream through the whole gateway: asked for in a chat, due by itself, seen, taken back, and argued with."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from agent.llm.chat_model import ChatReply, ChatRequest, Sink, TokenUsage
from gateway.admission import AdmissionPolicy
from gateway.ports.memory import HistoryEntry
from tests.e2e.agent.test_consolidation import SummaryModel as Consolidating
from tests.e2e.agent.test_consolidation import jobs, talk
from tests.fakes.documents import stored_text
from tests.fakes.dream_scene import DreamModel, add, edits, swap
from tests.fakes.inprocess_gateway import OPEN, InProcessGateway, gateway
from tests.fakes.staged_changes import change

ANN = "people/pocket%3aann"
ROOM = "chats/pocket%3aroom"


class DreamingModel(Consolidating):
    """Answers and summarises at once, and dreams as it is told."""

    def __init__(self, *answers: object) -> None:
        super().__init__()
        self.dreams = DreamModel(*answers)  # type: ignore[arg-type]

    async def complete(self, request: ChatRequest, *, sink: Sink | None = None) -> ChatReply:
        """Dream, or what the other one does."""
        if request.purpose == "dream":
            return await self.dreams.complete(request, sink=sink)
        if request.purpose == "note":
            return ChatReply(text="no", tool_calls=(), model=self.name, tokens=TokenUsage(1, 1), cost=0.0)
        return await super().complete(request, sink=sink)


@asynccontextmanager
async def at_work(
    model: object, home: Path | None = None, policy: AdmissionPolicy | None = None
) -> AsyncIterator[InProcessGateway]:
    """Run a gateway with a window of ten messages."""
    window = {"PARLOUR_AGENTS__DEFAULTS__MEMORY_WINDOW": "10"}
    async with gateway(model=model, environment=window, home=home, policy=policy) as parlour:
        yield parlour


async def add_history(parlour: InProcessGateway, *contents: str, scope: str = ANN, origin: str = "user") -> None:
    """Add entries to a scope's history."""
    entries = [
        HistoryEntry(
            timestamp="2026-11-21 20:00", content=each, session="pocket:ann", entry=f"e{n}{scope[:1]}", origin=origin
        )
        for n, each in enumerate(contents)
    ]
    await parlour.app.store.history.append(scope, *entries)


async def dream(parlour: InProcessGateway, chat: str = "ann", **facts: object) -> str:
    """Ask for a Dream and return what is said when it is done."""
    said = len(parlour.channel.posts.get(chat, ()))
    first = await parlour.channel.ask(chat, "/dream", **facts)
    assert first == "I'm reviewing recent conversations and will report the result here."
    return (await parlour.channel.posted(chat, said + 2))[-1].text


async def test_run_now_look_and_go_back() -> None:
    """/dream, /dream-log, /dream-log <sha>, /dream-restore, /dream-restore <sha>: each does what [003] says."""
    async with at_work(
        DreamingModel("study", edits(swap("- I drink coffee", "- I drink tea"), add("- lives in Bonn")))
    ) as parlour:
        ask = parlour.channel.ask
        assert "not changed anything here yet" in await ask("ann", "/dream-log")
        assert await dream(parlour) == "No new conversations since the last review."
        await ask("ann", "/remember I drink coffee")
        await add_history(parlour, "Ann now drinks tea.", "Ann lives in Bonn.")
        report = await dream(parlour)
        sha = change(report)
        assert report.startswith("I reviewed 2 new summaries and made 2 changes to my memory")
        assert stored_text(parlour.home, ANN) == "- I drink tea\n- lives in Bonn\n"
        newest, named = await ask("ann", "/dream-log"), await ask("ann", f"/dream-log {sha}")
        assert newest == named
        assert "-- I drink coffee" in newest
        assert "+- I drink tea" in newest
        assert sha in await ask("ann", "/dream-restore")
        # What Ann had kept meanwhile stays.
        await ask("ann", "/remember I have a dog")
        other = change(await ask("ann", "/memory why dog"))
        assert "not made by Dream" in await ask("ann", f"/dream-log {other}")
        assert (await ask("ann", f"/dream-restore {sha}")).startswith("Done. My memory is back to the state before")
        assert stored_text(parlour.home, ANN) == "- I drink coffee\n- I have a dog\n"
        assert await ask("ann", f"/dream-restore {sha}") == "My memory is already in that state."
        assert "Unknown change: zzzzzzzz" in await ask("ann", "/dream-restore zzzzzzzz")
        assert "Unknown change: zzzzzzzz" in await ask("ann", "/dream-log zzzzzzzz")


async def test_it_is_due_by_itself_after_a_consolidation_and_a_line_leads_back_to_what_was_said() -> None:
    """A full window, a summary, a job two hours later, a new line: /memory why names summary and message."""
    model = DreamingModel("study", edits(add("- talks about things a lot")))
    async with at_work(model) as parlour:
        await talk(parlour, 5)
        [job] = await jobs(parlour, lambda found: [each.kind for each in found] == ["dream"])
        assert job.scope == ANN
        now = parlour.app.commands.queue.now()
        assert timedelta(hours=1, minutes=59) < job.due_at - now <= timedelta(hours=2)
        assert await parlour.app.dreamer.run(job) is None  # as two hours later
        why = await parlour.channel.ask("ann", "/memory why things a lot")
        assert "> - talks about things a lot" in why
        assert "recent conversations were reviewed" in why
        assert "Summary number 1." in why
        assert re.search(r"Ann wrote: thing \d", why)


async def test_in_a_group_the_voice_is_proposed_and_going_back_is_for_its_admins() -> None:
    """What SOUL.md would become waits; answers are seen by their asker alone; a member restores nothing."""
    policy = OPEN
    wanted = edits(add("Be brief here.", document="SOUL.md"), add("- the office is in Bonn"))
    async with at_work(DreamingModel("study", wanted), policy=policy) as parlour:
        await add_history(parlour, "They moved to Bonn and like short answers.", scope=ROOM)
        report = await dream(parlour, "room", group=True, sender="bob")
        assert parlour.channel.posts["room"][-1].visible_to == "bob"
        assert "1 change needs your approval" in report
        assert not stored_text(parlour.home, ROOM, "SOUL.md")
        sha = change(report)
        refused = await parlour.channel.ask("room", f"/dream-restore {sha}", group=True, sender="bob")
        assert refused == "Only an admin of this chat or an owner of this bot can use /dream-restore here."
        pending = await parlour.channel.ask("room", "/memory pending", group=True, sender="eve", is_admin=True)
        assert "SOUL.md" in pending
        assert "Be brief here." in pending
        done = await parlour.channel.ask("room", f"/dream-restore {sha}", group=True, sender="eve", is_admin=True)
        assert done.startswith("Done.")
        assert stored_text(parlour.home, ROOM, "MEMORY.md") == ""


async def test_what_somebody_said_yes_to_still_leads_to_where_it_came_from() -> None:
    """A stranger's words, a yes, a line: /memory why names the yes and the summary behind it."""
    async with at_work(DreamingModel("study", edits(add("- the fair opens at nine")))) as parlour:
        await add_history(parlour, "A page says that the fair opens at nine.", origin="untrusted")
        assert "1 change needs your approval" in await dream(parlour)
        pending = await parlour.channel.ask("ann", "/memory pending")
        name = re.search(r"`(d[a-z2-7]{7})`", pending)
        assert name, pending
        assert (await parlour.channel.ask("ann", f"/memory approve {name[1]}")).startswith("Approved.")
        why = await parlour.channel.ask("ann", "/memory why fair")
        assert "pending change was approved" in why
        assert "A page says that the fair opens at nine." in why


async def test_a_model_of_its_own(tmp_path: Path) -> None:
    """`dream.model` of older configurations: Dream asks that one, and conversations the other."""
    script = tmp_path / "dream.json"
    script.write_text('[{"text": "study"}, {"calls": [{"name": "edit_memory", "arguments": {"operations": []}}]}]')
    environment = {"PARLOUR_AGENTS__DEFAULTS__DREAM__MODEL": f"scripted:{script}"}
    model = DreamingModel("never asked")
    async with gateway(model=model, environment=environment) as parlour:
        await add_history(parlour, "Something.")
        assert "did not need any automatic changes" in await dream(parlour)
    assert not model.dreams.asked


async def test_without_a_model_it_says_so() -> None:
    """The offline model cannot dream; nothing is queued that would wait for ever."""
    async with gateway() as parlour:
        await add_history(parlour, "Something.")
        assert "needs a language model, and none is configured" in await parlour.channel.ask("ann", "/dream")
        assert not await parlour.app.store.jobs.pending_in(ANN)
        for command in ("/dream-log", "/dream-restore"):
            assert "not changed anything here yet" in await parlour.channel.ask("ann", command)
