"""What waits for a yes is asked where it arose: once, between two turns, over restarts, and to nobody else."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from agent.base.transcript_lines import utc_now
from agent.memory.jobs.approval_questions import ASKS
from gateway.admission import AdmissionGrant, AdmissionPolicy, AllowEntry
from gateway.errors import StoreUnavailable
from gateway.events import InboundKind, OutboundKind, SessionKey
from gateway.ports.journal import TurnCommit, TurnLease, TurnRecord
from tests.e2e.agent.test_consolidation import SummaryModel
from tests.e2e.agent.test_staged_consolidation import FACTS, GOING, forgetting
from tests.fakes.inprocess_gateway import InProcessGateway, PostedMessage, gateway
from tests.fakes.staged_changes import FACT, look, memory, put_aside, removal, scope_in, staged

ANN, ROOM = "people/pocket%3aann", "chats/pocket%3aroom"
YES = "/memory approve eaaaaaaaaaaaaaaaa"


def questions(parlour: InProcessGateway, chat: str = "ann") -> list[PostedMessage]:
    """Return what was asked in a chat."""
    return [post for post in parlour.channel.posts.get(chat, ()) if "/memory approve" in post.text]


async def test_a_consolidation_that_may_not_remove_asks_in_its_chat() -> None:
    """The question names what would go, and how to say yes where there are no buttons; a yes does it."""
    async with forgetting() as parlour:
        (question,) = questions(parlour)
        assert question.kind is OutboundKind.NOTICE
        assert "larger than I make on my own" in question.text
        assert all(fact in question.text for fact in GOING)
        assert FACTS[5] not in question.text
        command = question.text.partition("`/memory approve ")[2].partition("`")[0]
        assert (await parlour.channel.ask("ann", f"/memory approve {command}")).startswith("Approved.")
        assert memory(parlour, ANN) == f"- {FACTS[5]}\n- something new\n"
        shown = [
            line.text
            for line in await parlour.app.memory.sessions.displayed_messages(SessionKey("pocket", "ann"), limit=50)
        ]
        assert any("/memory approve" in text for text in shown)  # who opens the page later sees what was asked


async def test_each_thing_is_asked_once_and_the_model_never_reads_it(tmp_path: Path) -> None:
    """Other jobs, another start, another thing that waits: what was asked is not asked again."""
    home, model = tmp_path / "home", SummaryModel()
    async with gateway(model=model, home=home) as parlour:
        await parlour.channel.ask("ann", "hello")
        await staged(parlour, ANN, "pocket:ann")
        await parlour.idle()
        await look(parlour, ANN, "again")
        await parlour.idle()
        assert len(questions(parlour)) == 1
    async with gateway(model=model, home=home) as parlour:
        await look(parlour, ANN, "after a restart")
        await staged(parlour, ANN, "pocket:ann", name="ecccccccccccccccc", fact="Ann sails")
        await parlour.idle()
        (question,) = questions(parlour)
        assert "Ann sails" in question.text
        assert FACT not in question.text
        await parlour.channel.ask("ann", "and now?")
        assert "Should I" not in str(model.prompts[-1])


async def test_a_crash_between_the_note_and_the_question_costs_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is noted first; a commit that fails then is tried again by the same turn, and the question is there once."""
    async with gateway(model=SummaryModel()) as parlour:
        await parlour.channel.ask("ann", "hello")
        await parlour.idle()
        journal = parlour.app.store.journal
        commit, failed = journal.commit, [0]

        async def full_twice(lease: TurnLease, what: TurnCommit) -> TurnRecord:
            if lease.rows[0].message.message_id.startswith(ASKS) and failed[0] < 2:
                failed[0] += 1
                raise StoreUnavailable("the disk is full")
            return await commit(lease, what)

        monkeypatch.setattr(journal, "commit", full_twice)
        await staged(parlour, ANN, "pocket:ann")
        await parlour.idle()
        assert failed == [2]
        assert len(questions(parlour)) == 1


async def test_what_lapsed_is_not_asked_about_and_a_late_yes_is_told_so() -> None:
    """After 14 days nothing is said, nothing changes; an old question's yes is answered."""
    async with gateway(model=SummaryModel()) as parlour:
        await parlour.channel.ask("ann", "hello")
        await put_aside(
            parlour,
            ANN,
            "pocket:ann",
            name="eaaaaaaaaaaaaaaaa",
            fact=FACT,
            at=utc_now() - timedelta(days=14, hours=1),
        )
        await look(parlour, ANN, "x")
        await parlour.idle()
        assert questions(parlour) == []
        await parlour.channel.say("ann", YES, kind=InboundKind.BUTTON, number="")
        posts = await parlour.channel.posted("ann", 2)
        assert posts[-1].text.startswith("This was already decided, or it expired")
        assert memory(parlour, ANN) == ""


async def test_nobody_is_asked_about_another_persons_memory() -> None:
    """A session that belongs to another scope by now stays silent, however the thing came to name it."""
    async with gateway(model=SummaryModel()) as parlour:
        await parlour.channel.ask("ann", "hello")
        await parlour.channel.ask("ben", "hello", sender="ben", name="Ben")
        await staged(parlour, ANN, "pocket:ben")
        await parlour.idle()
        assert questions(parlour, "ben") == []
        assert questions(parlour, "ann") == []
        assert FACT in await parlour.channel.ask("ann", "/memory pending")


async def test_in_a_group_a_member_decides_on_losing_their_own_words_alone() -> None:
    """Approvals are for admins; who deleted a message may have what came of it forgotten, and is not quoted."""
    said = {"group": True, "is_addressed": True}
    members = frozenset(AllowEntry(AdmissionGrant.USER, name) for name in ("ann", "ben"))
    async with gateway(model=SummaryModel(), policy=AdmissionPolicy(channel="pocket", entries=members)) as parlour:
        await parlour.channel.ask("room", "hello", sender="ben", name="Ben", **said)
        assert await scope_in(parlour, "pocket:room") == ROOM
        await parlour.app.store.documents.write(ROOM, "MEMORY.md", "- Ben is in debt\n", was="", why="t")
        await removal(parlour, ROOM, "pocket:room", line="- Ben is in debt", person="pocket%3aben")
        await staged(parlour, ROOM, "pocket:room")
        await parlour.idle()
        (question,) = questions(parlour, "room")
        assert "debt" not in question.text
        assert FACT in question.text
        refused = await parlour.channel.ask("room", YES, sender="ben", **said)
        assert refused.startswith("Only an admin")
        other = await parlour.channel.ask("room", "/memory approve ebbbbbbbbbbbbbbbb", sender="ann", **said)
        assert other.startswith("Only an admin")
        done = await parlour.channel.ask("room", "/memory approve ebbbbbbbbbbbbbbbb", sender="ben", **said)
        assert done.startswith("Approved.")
        assert "debt" not in memory(parlour, ROOM)
        assert (await parlour.channel.ask("room", YES, sender="ann", is_admin=True, **said)).startswith("Approved.")
        assert FACT in memory(parlour, ROOM)
